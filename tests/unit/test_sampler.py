"""One call of the sampler: rows and their company, runs of drafts, shared logits, masks, random numbers."""

import numpy as np
import pytest
from sampling_case import Letters, sample, state_for

from octavo.core.sampling import SamplingParams
from octavo.engine.sampling.random_numbers import stream_of, uniform
from octavo.engine.sampling.state import SamplingState
from octavo.scheduling.step import StepResult

TEXTS = Letters([chr(ord("a") + t % 26) * (1 + t // 26) for t in range(200)])
SETTINGS = [
    {"temperature": 0},
    {},
    {"temperature": 0.3, "top_k": 20},
    {"top_p": 0.9, "min_p": 0.01},
    {"typical_p": 0.8},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"frequency_penalty": 0.7, "presence_penalty": -0.5, "logprobs": 3},
    {"temperature": 0, "logit_bias": {3: 4.0, 9: -100}, "logprobs": 0},
    {"bad_words": ["ab", [5, 6]], "min_tokens": 3, "stop_token_ids": [8]},
    {"allowed_token_ids": list(range(0, 150, 3)), "top_k": 7},
]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def bitmask(allowed: list[int], vocab_size: int) -> np.ndarray:
    mask = np.zeros(-(-vocab_size // 32), np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1) << np.uint32(token % 32)
    return mask


def test_greedy_takes_the_lowest_id_among_equals():
    logits = np.zeros((3, 50), np.float32)
    logits[0, [7, 30]] = 2
    logits[2, 49] = 1
    state = state_for(*[SamplingParams(temperature=0)] * 3)
    assert sample(logits, np.arange(3), np.zeros(3, np.int32), state) == StepResult([7, 0, 49])


def test_a_plain_row_leaves_no_trace():
    state = state_for(SamplingParams(temperature=0, stop=["x"], stop_token_ids=[3], seed=5, top_k=4))
    assert not state.special
    assert [state.filters, state.adjustments, state.num_logprobs, state.faults] == [{}] * 4
    assert state.streams == {}


def test_a_closed_row_is_plain_again():
    logits = np.zeros((1, 50), np.float32)
    logits[0, 7] = 1
    for settings in SETTINGS:
        state = state_for(SamplingParams(**{**settings, "logit_bias": {3: 50.0}}), tokenizer=TEXTS)
        state.close(0)
        assert sample(logits, ints(0), ints(0), state) == StepResult([7])
    state.open(0, SamplingParams(logit_bias={3: 50.0}, temperature=0), seed=0)
    assert sample(logits, ints(0), ints(0), state).token_ids == [3]
    state.open(0, SamplingParams(temperature=0), seed=0)  # opened again without having been closed
    assert sample(logits, ints(0), ints(0), state).token_ids == [7]


def test_company_in_the_batch_changes_nothing():
    rng = np.random.default_rng(2)
    params = [SamplingParams(**SETTINGS[i % len(SETTINGS)]) for i in range(32)]
    logits = rng.normal(0, 3, (32, 1001)).astype(np.float32)
    rows, positions = np.arange(32), rng.integers(4, 5000, 32)

    def state() -> SamplingState:
        return state_for(*params, prompt=[1, 2, 5], output=[7, 5], tokenizer=TEXTS)

    together = sample(logits, rows, positions, state())
    assert not together.failures
    assert set(together.logprobs) == {i for i in range(32) if "logprobs" in SETTINGS[i % len(SETTINGS)]}
    order = rng.permutation(32)
    shuffled = sample(logits[order], rows[order], positions[order], state())
    assert [together.token_ids[i] for i in order] == shuffled.token_ids
    for i in range(32):
        alone = sample(logits[i : i + 1], rows[i : i + 1], positions[i : i + 1], state())
        assert alone.token_ids == [together.token_ids[i]]
        assert alone.logprobs.get(0) == together.logprobs.get(i)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_unusable_logits_are_named_and_hurt_no_other_row(bad, settings):
    logits = np.random.default_rng(3).normal(size=(3, 200)).astype(np.float32)
    clean = logits.copy()
    logits[1, 17] = bad
    rows, positions = np.arange(3), ints(5, 6, 7)

    def run(values: np.ndarray) -> StepResult:
        return sample(values, rows, positions, state_for(*[SamplingParams(**settings)] * 3, tokenizer=TEXTS))

    result, expected = run(logits), run(clean)
    assert result.failures == {
        1: f"the model gave no usable logits at position 6: largest is {np.float32(bad)}"
    }
    assert result.token_ids == [expected.token_ids[0], -1, expected.token_ids[2]]
    assert set(result.logprobs) == set(expected.logprobs) - {1}
    logits[1] = -np.inf
    assert list(run(logits).failures) == [1]


def test_logits_are_not_changed():
    logits = np.random.default_rng(4).normal(size=(len(SETTINGS), 200)).astype(np.float32)
    before = logits.copy()
    state = state_for(*[SamplingParams(**s) for s in SETTINGS], prompt=[1, 2], tokenizer=TEXTS)
    masks = {i: bitmask([4, 5, 6, 9], 200) for i in range(0, len(SETTINGS), 2)}
    sample(logits, np.arange(len(SETTINGS)), np.full(len(SETTINGS), 2), state, masks=masks)
    assert np.array_equal(logits, before)


def test_settings_that_leave_no_token_fail_their_row_only():
    logits = np.zeros((3, 50), np.float32)
    nothing = SamplingParams(temperature=0, allowed_token_ids=[4], min_tokens=2, stop_token_ids=[4])
    plain = SamplingParams(temperature=0)
    state = state_for(plain, nothing, plain)
    result = sample(logits, np.arange(3), ints(0, 0, 0), state, masks={2: bitmask([], 50)})
    assert result.token_ids == [0, -1, -1]
    assert result.failures == dict.fromkeys(
        (1, 2), "its sampling parameters or its grammar rule out every token at position 0"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"logit_bias": {50: 1}},
        {"allowed_token_ids": [50]},
        {"bad_words": [[1, 50]]},
        {"stop_token_ids": [50]},
    ],
    ids=str,
)
def test_ids_outside_the_vocabulary_fail_their_row_only(settings):
    logits = np.zeros((2, 50), np.float32)
    state = state_for(SamplingParams(temperature=0, **settings), SamplingParams(temperature=0), vocab_size=50)
    result = sample(logits, ints(0, 1), ints(0, 0), state)
    assert result.token_ids == [-1, 0]
    assert f"{next(iter(settings))}: token id 50 is outside the vocabulary" in result.failures[0]


def test_bad_texts_without_a_tokenizer_fail_their_row_only():
    state = state_for(SamplingParams(bad_words=["x"]), SamplingParams(temperature=0))
    result = sample(np.zeros((2, 50), np.float32), ints(0, 1), ints(0, 0), state)
    assert "no tokenizer" in result.failures[0]
    assert result.token_ids == [-1, 0]


# Several tokens per call


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("num_right", [0, 1, 3, 5])
def test_a_run_of_drafts_gives_what_single_steps_give(settings, num_right):
    rng = np.random.default_rng(8)
    logits = rng.normal(0, 2, (6, 200)).astype(np.float32)
    params = [SamplingParams(**settings), SamplingParams(temperature=0), SamplingParams()]
    prompt = [1, 2, 5, 0]
    stepwise = state_for(*params, prompt=prompt, tokenizer=TEXTS)
    expected = [sample(logits[i : i + 1], ints(0), ints(4 + i), stepwise) for i in range(6)]
    tokens = [step.token_ids[0] for step in expected]
    drafts = [*tokens[:5], -1]
    if num_right < 5:
        drafts[num_right] = (tokens[num_right] + 1) % 200
    # The run has neighbours before and after it.
    rows, positions = ints(1, 0, 0, 0, 0, 0, 0, 2), ints(9, 4, 5, 6, 7, 8, 9, 9)
    sources = ints(3, 0, 1, 2, 3, 4, 5, 2)
    state = state_for(*params, prompt=prompt, tokenizer=TEXTS)
    result = sample(logits, rows, positions, state, sources=sources, drafts=[-1, *drafts, -1])
    assert not result.failures
    got = result.token_ids[1:7]
    assert got == tokens[: num_right + 1] + [-1] * (5 - num_right)
    for i in range(num_right + 1):
        assert result.logprobs.get(1 + i) == expected[i].logprobs.get(0)
    assert not any(1 + i in result.logprobs for i in range(num_right + 1, 6))
    fresh = state_for(*params, prompt=prompt, tokenizer=TEXTS)
    others = sample(logits, ints(1, 2), ints(9, 9), fresh, sources=ints(3, 2))
    assert [result.token_ids[0], result.token_ids[7]] == others.token_ids
    # The row goes on as if it had been stepped to where the run ended.
    after = state_for(*params, prompt=prompt, output=tokens[: num_right + 1], tokenizer=TEXTS)
    where = ints(4 + num_right + 1)
    assert sample(logits[:1], ints(0), where, state) == sample(logits[:1], ints(0), where, after)


def test_a_failure_ends_its_run():
    logits = np.zeros((3, 40), np.float32)
    logits[1, 3] = np.nan
    state = state_for(SamplingParams(temperature=0))
    result = sample(logits, ints(0, 0, 0), ints(1, 2, 3), state, drafts=[0, 0, -1])
    assert result.token_ids == [0, -1, -1]
    assert list(result.failures) == [1]


def test_samples_of_one_prompt_share_its_logits():
    logits = np.random.default_rng(9).normal(0, 1, (2, 300)).astype(np.float32)
    params = [SamplingParams(n=4)] * 4 + [SamplingParams(temperature=0)]
    state = state_for(*params, seeds=[11] * 5, sample_indices=[0, 1, 2, 3, 0])
    sources, rows = ints(0, 0, 0, 0, 1), np.arange(5)
    result = sample(logits, rows, np.full(5, 6), state, sources=sources)
    assert len(set(result.token_ids[:4])) > 1
    assert result.token_ids[4] == logits[1].argmax()
    alone = state_for(SamplingParams(), seeds=[11])  # sample 0 is what a request without samples gets
    assert sample(logits[:1], ints(0), ints(6), alone).token_ids == result.token_ids[:1]


# Masks


@pytest.mark.parametrize("settings", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.9, "min_p": 0.1}])
@pytest.mark.parametrize("vocab_size", [64, 70])
def test_only_tokens_of_the_mask_are_chosen(settings, vocab_size):
    rng = np.random.default_rng(10)
    for seed in range(30):
        logits = rng.normal(0, 3, (2, vocab_size)).astype(np.float32)
        allowed = rng.choice(vocab_size, 5, replace=False).tolist()
        masks = {0: bitmask(allowed, vocab_size)}
        state = state_for(*[SamplingParams(**settings)] * 2, vocab_size=vocab_size, seeds=[seed, seed])
        result = sample(logits, ints(0, 1), ints(3, 3), state, masks=masks)
        assert result.token_ids[0] in allowed
        listed = SamplingParams(**settings, allowed_token_ids=allowed)
        other = state_for(listed, vocab_size=vocab_size, seeds=[seed])
        assert sample(logits[:1], ints(0), ints(3), other).token_ids == result.token_ids[:1]
        free = state_for(SamplingParams(**settings), vocab_size=vocab_size, seeds=[seed])
        assert sample(logits[1:], ints(0), ints(3), free).token_ids == result.token_ids[1:]


def test_a_mask_of_nothing_but_ends_outweighs_min_tokens():
    logits = np.zeros((4, 50), np.float32)
    logits[:, [7, 8, 9]] = [2, 1, 3]
    params = SamplingParams(temperature=0, min_tokens=5, stop_token_ids=[7, 40])
    state = state_for(*[params] * 4, vocab_size=50, eos=[8])
    masks = {1: bitmask([7, 8, 40], 50), 2: bitmask([7, 8, 20], 50), 3: bitmask([], 50)}
    result = sample(logits, np.arange(4), ints(4, 4, 4, 4), state, masks=masks)
    assert result.token_ids == [9, 7, 20, -1]
    assert list(result.failures) == [3]


def test_a_mask_may_be_wider_than_the_vocabulary_or_read_only():
    logits = np.zeros((1, 33), np.float32)
    mask = np.full(4, 0xFFFFFFFF, np.uint32)
    mask[0] = 0
    mask.setflags(write=False)
    state = state_for(SamplingParams(temperature=0))
    assert sample(logits, ints(0), ints(0), state, masks={0: mask}).token_ids == [32]


# Random numbers


def numbers(seed: int, positions: range, sample_index: int = 0) -> list[float]:
    return [uniform(stream_of(seed, sample_index), position) for position in positions]


def test_numbers_are_uniform_and_independent():
    positions = range(300)
    for table in (
        np.array([numbers(seed * 0x123456789ABCDEF % 2**64, positions) for seed in range(300)]),
        np.array([numbers(seed, positions) for seed in range(300)]),
        np.array([numbers(5, positions, sample_index) for sample_index in range(300)]),
    ):
        assert (table >= 0).all()
        assert (table < 1).all()
        assert len(np.unique(table)) == table.size
        assert abs(table.mean() - 0.5) < 5 / np.sqrt(12 * table.size)
        for neighbours in (table[1:] * table[:-1], table[:, 1:] * table[:, :-1]):
            assert abs(neighbours.mean() - 0.25) < 0.005


def test_numbers_are_splitmix64():
    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    # The first outputs of the published generator for state 1234567.
    assert [mix((1234567 + i * gamma) % 2**64) for i in (1, 2)] == [6457827717110365317, 3203168211198807973]
    for seed, position in ((0, 0), (5, 1000), (2**64 - 1, 7)):
        stream = mix((seed + gamma) % 2**64)
        bits = mix((stream + (position + 1) * gamma) % 2**64)
        assert uniform(stream_of(seed), position) == (bits >> 11) * 2.0**-53


def test_streams_of_seeds_and_samples_differ():
    streams = {stream_of(seed, index) for seed in range(200) for index in range(64)}
    assert len(streams) == 200 * 64
    assert all(0 <= stream < 2**64 for stream in streams)
