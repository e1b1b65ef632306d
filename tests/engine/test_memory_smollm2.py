"""Memory on the real model: layouts, sharing and eviction change no token, and say what they did."""

import pytest

from octavo import LLM, RequestOutput, SamplingParams
from octavo.core.errors import InvalidConfig, InvalidRequest

MIXED = {"0-9": 64, "10-19": 16, "20-29": 8}
STORY = (
    "The lighthouse keeper counted ships at dusk. Each had a lamp, and each lamp a colour of its own: red "
    "for salt, green for timber, white for letters from the other side of the sea. "
)
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)

layouts = pytest.mark.parametrize("block_size", [16, MIXED], ids=["uniform", "mixed"])


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    assert all(o.error is None for o in outputs)
    return [o.outputs[0].token_ids for o in outputs]


@pytest.fixture(scope="module")
def uniform(smollm2_path):
    with LLM(smollm2_path, kv_memory="128MiB") as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(smollm2_path):
    """Without any cache: what every other answer is compared with."""
    with LLM(smollm2_path, kv_memory="128MiB", prefix_cache=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def mixed(smollm2_path):
    with LLM(smollm2_path, kv_memory="128MiB", block_size=MIXED) as llm:
        yield llm


@pytest.fixture
def llm(block_size, uniform, mixed):
    return mixed if block_size == MIXED else uniform


@pytest.fixture(scope="module")
def story(plain) -> list[int]:
    """Token ids that make sense to the model, longer than any prompt here."""
    ids = plain.tokenizer.encode(STORY * 16)
    assert len(ids) > 600
    return ids


def test_mixed_block_sizes_give_the_same_tokens(plain, uniform, mixed, story):
    prompts = [story[i : i + n] for i, n in enumerate((1, 7, 8, 9, 63, 64, 65, 150))]
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    expected = tokens(plain.generate(prompts, params))
    sampled = [SamplingParams(max_tokens=20, temperature=0.8, seed=i, ignore_eos=True) for i in range(8)]
    expected_samples = tokens(plain.generate(prompts, sampled))
    for llm in (uniform, mixed):
        assert tokens(llm.generate(prompts, params)) == expected
        assert tokens(llm.generate(prompts, params)) == expected
        assert tokens(llm.generate(prompts, sampled)) == expected_samples
        assert llm.memory().stats.hit_tokens > 0
    assert [g.block_size for g in mixed.memory().stats.groups] == [64, 16, 8]


def test_the_mixed_layout_is_told(mixed, uniform):
    assert [(g.layers[0], g.block_size, g.num_tables) for g in mixed.capacity.plan.groups] == [
        (0, 64, 9),
        (10, 16, 2),
        (20, 8, 1),
    ]
    assert mixed.capacity.padding == pytest.approx(0.04)
    assert uniform.capacity.padding == 0
    assert mixed.capacity.num_tokens == pytest.approx(0.96 * uniform.capacity.num_tokens, rel=0.01)
    assert hash(mixed.config) != hash(uniform.config)
    assert mixed.config.block_sizes == MIXED


@layouts
def test_cold_equals_warm_at_block_edges(llm, plain, story, block_size):
    unit = 64 if block_size == MIXED else 16
    for length in (unit - 1, unit, unit + 1, 2 * unit - 1, 2 * unit, 2 * unit + 1):
        prompt = story[length : 2 * length]  # no two begin alike
        params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
        expected = tokens(plain.generate(prompt, params))
        cold, warm, again = (llm.generate(prompt, params)[0] for _ in range(3))
        assert tokens([cold]) == tokens([warm]) == tokens([again]) == expected
        assert warm.num_cached_tokens == length - 1  # all of it; the last token is always computed
    for rest in (1, unit - 1, unit):
        longer = prompt + story[:rest]
        assert tokens(llm.generate(longer, params)) == tokens(plain.generate(longer, params))


@layouts
def test_a_prompt_that_differs_inside_a_block(llm, plain, story, block_size):
    prompt = story[300:500]
    llm.generate(prompt, GREEDY)
    for cut in (130, 137, 150):
        other = [*prompt[:cut], 28, *story[:9]]
        output = llm.generate(other, GREEDY)[0]
        assert tokens([output]) == tokens(plain.generate(other, GREEDY))
        found = llm.explain(output.request_id)
        assert (found.reason, found.position) == ("differs", cut)
        assert found.num_cached == output.num_cached_tokens
        # A mixed layout cannot match more than its coarsest blocks agree on.
        assert found.num_cached == cut if cut < 192 or block_size == 16 else 192


@layouts
def test_the_same_request_five_times(llm, plain, story):
    prompt = story[211:260]
    assert tokens(llm.generate([prompt] * 5, GREEDY)) == tokens(plain.generate(prompt, GREEDY)) * 5
    assert [tokens(llm.generate(prompt, GREEDY)) for _ in range(5)] == [
        tokens(plain.generate(prompt, GREEDY))
    ] * 5


@layouts
def test_after_a_neighbour_that_ended_early(llm, plain, story):
    prompts = [story[i : i + 70] for i in (17, 53, 91)]
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    expected = tokens(plain.generate(prompts, params))
    early, late = (llm.stream(p, params) for p in prompts[:2])
    next(early)
    early.close()
    list(late)
    assert tokens([late.output]) == expected[1:2]
    assert tokens(llm.generate([prompts[0], prompts[2]], params)) == [expected[0], expected[2]]


@layouts
def test_a_pool_just_big_enough_to_evict_constantly(smollm2_path, plain, story, block_size):
    prompts = [story[10 * i : 10 * i + 30] for i in range(3)]
    params = SamplingParams(max_tokens=90, temperature=0, ignore_eos=True)
    expected = tokens(plain.generate(prompts, params))
    with LLM(smollm2_path, kv_memory="3584KiB", block_size=block_size) as llm:
        assert llm.capacity.num_tokens < 150
        assert tokens(llm.generate(prompts, params)) == expected
        assert llm.memory().stats.evictions > 0
        assert llm.engine.scheduler.stats().num_preemptions > 0
        assert llm.memory().stats.used_blocks == 0


def test_requests_that_share_500_tokens_hold_their_blocks_once(uniform, plain, story):
    shared = story[:500]
    prompts = [[*shared, 28 + i] for i in range(8)]
    expected = tokens(plain.generate(prompts, GREEDY))
    streams = [uniform.stream(p, GREEDY) for p in prompts]
    for stream in streams:
        next(stream)
    report = uniform.memory()
    held = {stream.request_id: set(report.requests[stream.request_id]) for stream in streams}
    in_all = set.intersection(*held.values())
    assert len(in_all) == 500 // 16
    assert all(len(blocks - in_all) == 1 for blocks in held.values())  # tokens 496 and on
    assert len(set.union(*held.values())) == 500 // 16 + 8 == report.stats.used_blocks
    assert report.stats.shared_blocks == 500 // 16
    assert report.stats.sharing_ratio == pytest.approx(8 * 32 / 39)
    for stream in streams:
        list(stream)
    assert tokens([s.output for s in streams]) == expected


def test_a_mixed_layout_shares_too(mixed, plain, story):
    shared = story[:192]
    prompts = [[*shared, 28 + i] for i in range(4)]
    expected = tokens(plain.generate(prompts, GREEDY))
    streams = [mixed.stream(p, GREEDY) for p in prompts]
    for stream in streams:
        next(stream)
    held = [set(blocks) for blocks in mixed.memory().requests.values()]
    assert len(set.intersection(*held)) == 192 // 64 * 9 + 192 // 16 * 2 + 192 // 8
    for stream in streams:
        list(stream)
    assert tokens([s.output for s in streams]) == expected


@layouts
def test_nothing_is_held_when_idle(llm, story):
    params = SamplingParams(max_tokens=6, temperature=0.9)
    llm.generate([story[i : i + 9] for i in range(20)], params)
    for i in range(20):
        with llm.stream(story[i : i + 20], params) as stream:
            next(stream)
    with pytest.raises(InvalidRequest):
        llm.generate([[1], []])
    stats = llm.memory().stats
    assert (stats.used_blocks, stats.shared_blocks, stats.pinned_blocks, stats.sequences) == (0, 0, 0, 0)
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks == llm.capacity.num_blocks
    assert llm.memory().requests == {}


def test_explain_during_and_after(uniform, plain, story):
    stream = uniform.stream(story[77:130], GREEDY)
    with pytest.raises(InvalidRequest, match="has not started"):
        uniform.explain(stream.request_id)
    next(stream)
    during = uniform.explain(stream.request_id)
    assert during.num_tokens == 53
    list(stream)
    assert uniform.explain(stream.request_id) == during
    warm = uniform.generate(story[77:130], GREEDY)[0]
    assert str(uniform.explain(warm.request_id)) == (
        "52 of 53 tokens cached: all tokens but the last, which is always computed, were cached"
    )
    off = plain.generate(story[:40], GREEDY)[0]
    assert plain.explain(off.request_id).reason == "disabled"
    with pytest.raises(InvalidRequest, match="request 999999"):
        uniform.explain(999_999)


@pytest.mark.parametrize(
    ("block_size", "message"),
    [
        ({"0-9": 16}, "layers 10-29 have none"),
        ({"0-9": 16, "9-29": 8}, "layer 9 has a block size already"),
        ({"0-30": 16}, "layer 30 of a model with 30 layers"),
        ({"0-29": 12}, "block_size['0-29']=12: must be a multiple of 8"),
        ({"0-29": "16"}, "block_size['0-29']='16': must be an integer"),
        ({"first": 16}, "not layers"),
        ({}, "block_size names no layers"),
    ],
    ids=str,
)
def test_block_sizes_that_do_not_fit_the_model(smollm2_path, block_size, message):
    with pytest.raises(InvalidConfig) as error:
        LLM(smollm2_path, block_size=block_size)
    assert message in str(error.value)
