"""Models with sliding windows through the whole engine: right, bounded, and served by the prefix cache."""

import json
from typing import Any

import pytest
import tiny

from octavo import LLM, RequestOutput, SamplingParams
from octavo.core.errors import InvalidConfig
from octavo.paging.groups import most_frames

SLIDING = ("mistral", "mistral-long-window", "qwen2-some-layers-slide")
PROMPTS = tiny.prompts(1, 7, 8, 9, 40, 41, 100)
GREEDY = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
FULL: dict[str, Any] = {"activations": "float32", "kv_dtype": "float32", "kv_memory": "2MiB"}

sliding = pytest.mark.parametrize("name", SLIDING)
block_sizes = pytest.mark.parametrize("block_size", [8, 16, {"0": 16, "1-2": 8}], ids=str)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    assert all(o.error is None for o in outputs)
    return [o.outputs[0].token_ids for o in outputs]


def greedy(llm: LLM, prompts: list[list[int]], max_tokens: int = 30) -> list[list[int]]:
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return tokens(llm.generate(prompts, params))


def check_greedy(reference, prompts: list[list[int]], generated: list[list[int]]) -> None:
    """Given all tokens before it, each token is transformers' choice; so generation cannot have parted."""
    for prompt, new in zip(prompts, generated, strict=True):
        logits = tiny.logits(reference, prompt + new)[len(prompt) - 1 : -1]
        assert new == logits.argmax(axis=-1).tolist()


@sliding
@block_sizes
def test_tokens_equal_transformers_cold_and_warm(tiny_directory, name, block_size):
    reference, path = tiny_directory(name)
    with LLM(path, block_size=block_size, max_step_tokens=32, **FULL) as llm:
        assert any(group.window for group in llm.capacity.plan.groups)
        cold = llm.generate(PROMPTS, GREEDY)
        check_greedy(reference, PROMPTS, tokens(cold))
        warm = llm.generate(PROMPTS, GREEDY)
        assert tokens(warm) == tokens(cold)
        assert [o.num_cached_tokens for o in warm] == [len(p) - 1 for p in PROMPTS]
        assert llm.memory().stats.hit_rate > 0.4


@sliding
def test_the_oracle_runs_groups_too(tiny_directory, name):
    reference, path = tiny_directory(name)
    prompts = [PROMPTS[3], PROMPTS[5]]
    with LLM(path, block_size={"0": 16, "1-2": 8}, backend="oracle", **FULL) as llm:
        for _ in range(2):
            check_greedy(reference, prompts, greedy(llm, prompts, 8))


@sliding
@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 8},
        {"block_size": {"0-1": 8, "2": 16}},
        {"block_size": 128},
        {"prefix_cache": False},
        {"max_step_tokens": 5},
        {"threads": 1},
    ],
    ids=str,
)
def test_settings_do_not_change_tokens(tiny_directory, name, settings):
    _, path = tiny_directory(name)
    with LLM(path, kv_memory="2MiB") as llm:
        expected = greedy(llm, PROMPTS)
    with LLM(path, kv_memory="4MiB", **settings) as llm:
        assert greedy(llm, PROMPTS) == expected
        assert [greedy(llm, [p])[0] for p in PROMPTS] == expected


@sliding
@pytest.mark.parametrize("edge", [8, 40, 96])
def test_a_prompt_around_an_edge_three_times(tiny_directory, name, edge):
    """Edges of blocks and windows; the third time with another end, so that a suffix remains."""
    _, path = tiny_directory(name)
    with (
        LLM(path, block_size=8, kv_memory="2MiB") as llm,
        LLM(path, prefix_cache=False, kv_memory="2MiB") as off,
    ):
        for length in (edge - 1, edge, edge + 1):
            prompt = tiny.prompts(length, seed=length)[0]
            cold, warm = greedy(llm, [prompt]), greedy(llm, [prompt])
            assert cold == warm == greedy(off, [prompt])
            for rest in (1, 7, 8, 9):
                longer = prompt + tiny.prompts(rest, seed=rest)[0]
                assert greedy(llm, [longer], 9) == greedy(off, [longer], 9)
        assert llm.memory().stats.hit_tokens > 0
        assert off.memory().stats.hit_tokens == 0


@pytest.mark.parametrize("name", ["mistral", "mistral-long-window"])
def test_a_long_generation_gives_its_blocks_back(tiny_directory, name):
    """The pool has room for one window and a chunk, far fewer tokens than the sequence has."""
    reference, path = tiny_directory(name)
    prompt = PROMPTS[-1]
    with LLM(path, block_size=8, max_num_seqs=1, max_step_tokens=8, **{**FULL, "kv_memory": None}) as llm:
        spec = llm.capacity.plan.specs[0]
        assert llm.capacity.num_blocks == spec.most_blocks(10_000) + 1
        assert llm.capacity.num_tokens < len(prompt)
        params = SamplingParams(max_tokens=150, temperature=0, ignore_eos=True)
        stream = llm.stream(prompt, params)
        held = []
        for _ in stream:
            held += [len(blocks) for blocks in llm.memory().requests.values()]
        assert len(held) > 100
        assert max(held) <= spec.most_blocks(10_000)
        assert llm.memory().stats.evictions > 10
        output = stream.output
        check_greedy(reference, [prompt], tokens([output]))
        # What it ended with is still there: going on from it computes next to nothing.
        going_on = prompt + output.outputs[0].token_ids
        again = llm.generate(going_on, SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))
        assert again[0].num_cached_tokens > len(going_on) - 9
        check_greedy(reference, [going_on], tokens(again))


@sliding
def test_a_pool_just_big_enough_evicts_all_the_time(tiny_directory, name):
    _, path = tiny_directory(name)
    with LLM(path, kv_memory="2MiB") as llm:
        expected = greedy(llm, PROMPTS)
        plan = llm.capacity.plan
    with LLM(
        path, kv_memory=(most_frames(plan.specs, 129) + 1) * plan.frame_bytes, max_step_tokens=40
    ) as llm:
        for _ in range(2):
            assert greedy(llm, PROMPTS) == expected
        stats = llm.memory().stats
        assert stats.evictions > 0
        assert (stats.used_blocks, stats.sequences) == (0, 0)


def test_windows_are_told_by_the_capacity(tiny_directory):
    _, path = tiny_directory("qwen2-some-layers-slide")
    with LLM(path, kv_memory="2MiB") as llm:
        assert [(g.layers, g.window) for g in llm.capacity.plan.groups] == [((0,), None), ((1, 2), 9)]
        assert llm.capacity.padding == 0


def test_too_much_padding_is_refused_with_the_numbers_and_a_choice_that_works(tiny_directory):
    _, path = tiny_directory("llama")
    with pytest.raises(InvalidConfig) as caught:
        LLM(path, block_size={"0": 128, "1-2": 56}, kv_memory="2MiB")
    message = str(caught.value)
    assert 'block sizes {"0": 128, "1-2": 56} would waste' in message
    assert "the limit is 5%" in message
    choice = message.partition("the nearest choice that fits is ")[2].partition(" with ")[0]
    with LLM(path, block_size=json.loads(choice), kv_memory="2MiB") as llm:
        assert llm.capacity.padding <= 0.05
