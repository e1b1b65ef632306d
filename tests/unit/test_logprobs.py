"""Log-probabilities against a float64 log-softmax, and as the sampler reports them."""

from itertools import pairwise

import numpy as np
import pytest
from sampling_case import sample, state_for

from octavo.core.sampling import SamplingParams
from octavo.engine.sampling.logprobs import token_logprobs


def exact(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    return x - x.max(axis=1, keepdims=True) - np.log(np.exp(x - x.max(axis=1, keepdims=True)).sum(1))[:, None]


@pytest.mark.parametrize("num_logprobs", [0, 1, 5, 20])
@pytest.mark.parametrize(("vocab", "spread"), [(30, 1.0), (1000, 8.0), (49152, 0.01), (49152, 4.0)])
def test_they_are_the_log_softmax_of_the_raw_logits(num_logprobs, vocab, spread):
    rng = np.random.default_rng(vocab)
    logits = rng.normal(-7, spread, (4, vocab)).astype(np.float32)
    tokens = [int(logits[0].argmax()), *rng.integers(0, vocab, 3).tolist()]
    expected = exact(logits)
    for i, entry in enumerate(token_logprobs(logits, tokens, num_logprobs)):
        order = np.argsort(-logits[i], kind="stable")
        best = [t for t in order[:num_logprobs].tolist() if t != tokens[i]]
        assert [token_id for token_id, _, _ in entry] == [tokens[i], *best]
        for token_id, logprob, rank in entry:
            assert abs(logprob - expected[i, token_id]) < 1e-5
            assert order[rank - 1] == token_id


def test_ties_rank_by_id():
    [entry] = token_logprobs(np.zeros((1, 40), np.float32), [7], 3)
    assert [(token_id, rank) for token_id, _, rank in entry] == [(7, 8), (0, 1), (1, 2), (2, 3)]
    assert {round(logprob, 6) for _, logprob, _ in entry} == {round(-np.log(40), 6)}


def test_impossible_tokens_and_unusable_rows():
    logits = np.full((2, 10), -np.inf, np.float32)
    logits[0, 4] = 1
    logits[1, 3] = np.nan
    impossible, unusable = token_logprobs(logits, [2, 1], 5)
    assert impossible == ((2, -np.inf, 4), (4, 0.0, 1))
    assert all(np.isnan(logprob) for _, logprob, _ in unusable)


@pytest.mark.parametrize("cuts", [[0, 12], [0, 5, 12], [0, 1, 2, 11, 12]])
def test_a_prompt_in_chunks_has_no_holes(cuts):
    """The logits at a chunk's last token predict the first of the next."""
    rng = np.random.default_rng(6)
    prompt = rng.integers(0, 50, 13).tolist()
    logits = rng.normal(size=(12, 50)).astype(np.float32)
    entries = []
    for start, end in pairwise(cuts):
        entries += token_logprobs(logits[start:end], prompt[start + 1 : end + 1], 2)
    assert entries == token_logprobs(logits, prompt[1:], 2)
    assert [entry[0][0] for entry in entries] == prompt[1:]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"temperature": 0.2, "top_k": 3},
        {"repetition_penalty": 2.0, "logit_bias": {5: 50.0}, "allowed_token_ids": [5, 6, 7]},
    ],
    ids=str,
)
def test_the_sampler_reports_them_whatever_it_was_told_to_choose(settings):
    logits = np.random.default_rng(1).normal(size=(3, 100)).astype(np.float32)
    params = [SamplingParams(**settings, logprobs=num) for num in (0, None, 4)]
    state = state_for(*params)
    result = sample(logits, np.arange(3), np.zeros(3, np.int32), state)
    assert set(result.logprobs) == {0, 2}
    for i, num_logprobs in ((0, 0), (2, 4)):
        expected = token_logprobs(logits[i : i + 1], [result.token_ids[i]], num_logprobs)
        assert [result.logprobs[i]] == expected


def test_the_best_of_several_need_the_log_probabilities_of_their_tokens():
    assert SamplingParams().num_logprobs is None
    assert SamplingParams(n=3).num_logprobs is None
    assert SamplingParams(n=3, best_of=3).num_logprobs is None
    assert SamplingParams(n=3, best_of=4).num_logprobs == 0
    assert SamplingParams(best_of=4, logprobs=7).num_logprobs == 7
    state = state_for(SamplingParams(best_of=2, temperature=0))
    result = sample(np.zeros((1, 40), np.float32), np.zeros(1, np.int32), np.zeros(1, np.int32), state)
    assert len(result.logprobs[0]) == 1
