"""Beam search against exhaustive search, and against transformers on the same models' logits."""

import itertools

import numpy as np
import pytest
import tiny
import torch

from octavo.core.errors import InvalidRequest
from octavo.engine.beam import BeamParams, BeamSearch, Hypothesis

STOP = 2


def top(logprobs: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` likeliest tokens of each row, in an order that says nothing."""
    ids = np.argsort(-logprobs, axis=1, kind="stable")[:, :count]
    ids = ids[:, ::-1]
    return ids, np.take_along_axis(logprobs, ids, axis=1)


def table_logprobs(prefix: tuple[int, ...], vocab_size: int, seed: int) -> np.ndarray:
    logits = np.random.default_rng([seed, *prefix]).normal(size=vocab_size) * 2
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def search(params: BeamParams, *, vocab_size: int, max_tokens: int, seed: int) -> list[Hypothesis]:
    beams = BeamSearch(params, stop_ids={STOP}, max_tokens=max_tokens)
    prefixes: list[tuple[int, ...]] = [()]
    while beams.num_live:
        assert beams.num_live == len(prefixes)
        rows = np.stack([table_logprobs(p, vocab_size, seed) for p in prefixes])
        step = beams.advance(*top(rows, beams.num_candidates))
        prefixes = [(*prefixes[p], t) for p, t in zip(step.parents, step.token_ids, strict=True)]
        assert step.cumulative_logprobs == sorted(step.cumulative_logprobs, reverse=True)
        for prefix, logprob in zip(prefixes, step.cumulative_logprobs, strict=True):
            assert logprob == cumulative(prefix, vocab_size, seed)
    return beams.hypotheses


def cumulative(tokens: tuple[int, ...], vocab_size: int, seed: int) -> float:
    total = np.float32(0)
    for i, token in enumerate(tokens):
        total = table_logprobs(tokens[:i], vocab_size, seed)[token] + total
    return float(total)


def all_sequences(vocab_size: int, max_tokens: int) -> list[tuple[int, ...]]:
    others = [t for t in range(vocab_size) if t != STOP]
    stopped = [(*s, STOP) for n in range(max_tokens) for s in itertools.product(others, repeat=n)]
    return stopped + list(itertools.product(others, repeat=max_tokens))


@pytest.mark.parametrize("length_penalty", [-1.5, 0.0, 0.7, 1.0, 3.0])
def test_wide_enough_it_is_exhaustive(length_penalty):
    params = BeamParams(width=32, length_penalty=length_penalty, early_stopping="never")
    for seed, max_tokens in itertools.product(range(8), range(1, 5)):
        found = search(params, vocab_size=3, max_tokens=max_tokens, seed=seed)
        sequences = all_sequences(3, max_tokens)
        assert len(found) == len(sequences) <= 32
        for hypothesis in found:
            tokens = tuple(hypothesis.token_ids)
            logprob = cumulative(tokens, 3, seed)
            assert hypothesis.cumulative_logprob == logprob
            penalty = np.float32(len(tokens) ** length_penalty)
            assert hypothesis.score == float(np.float32(logprob) / penalty)
            assert hypothesis.finish_reason == ("stop" if tokens[-1] == STOP else "length")
        assert {tuple(h.token_ids) for h in found} == set(sequences)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def test_never_finds_the_best_where_all_live_beams_fit():
    # 27 live beams of three tokens fit; only finished ones beyond the width are lost.
    for seed, length_penalty in itertools.product(range(10), (0.0, 1.0)):
        params = BeamParams(width=32, length_penalty=length_penalty, early_stopping="never")
        found = search(params, vocab_size=4, max_tokens=4, seed=seed)
        scores = [cumulative(s, 4, seed) / len(s) ** length_penalty for s in all_sequences(4, 4)]
        assert found[0].score == pytest.approx(max(scores), rel=1e-6)


def test_width_one_is_greedy():
    for seed in range(20):
        found = search(BeamParams(width=1), vocab_size=6, max_tokens=8, seed=seed)
        tokens: list[int] = []
        while len(tokens) < 8 and STOP not in tokens:
            tokens.append(int(table_logprobs(tuple(tokens), 6, seed).argmax()))
        # A stop token that is the second best never counts; one that is the best ends the search.
        assert [h.token_ids for h in found] == [tokens]


@pytest.fixture(scope="module")
def model():
    return tiny.make("llama")


def find_stop_sets(model) -> tuple[list[int], list[int], list[int]]:
    """A token that hardly ever comes, one that comes all the time, and several of that kind."""
    with torch.no_grad():
        rows = torch.stack([model(torch.tensor([p])).logits[0, -1] for p in tiny.prompts(*[5] * 24)])
    ranks = rows.log_softmax(-1).mean(0).argsort(descending=True).tolist()
    return ranks[-1:], ranks[:1], ranks[:5]


@torch.no_grad()
def own_search(model, prompt: list[int], params: BeamParams, stop_ids: list[int], max_tokens: int):
    beams = BeamSearch(params, stop_ids=stop_ids, max_tokens=max_tokens)
    # The calls are those that transformers makes, the prompt ``width`` times at first: logits are equal.
    sequences = [list(prompt)] * params.width
    while beams.num_live:
        rows = (
            model(torch.tensor(sequences), use_cache=False, logits_to_keep=1)
            .logits[:, -1]
            .float()
            .log_softmax(-1)
            .numpy()
        )
        step = beams.advance(*top(rows[: beams.num_live], beams.num_candidates))
        sequences = [[*sequences[p], t] for p, t in zip(step.parents, step.token_ids, strict=True)]
    return beams.hypotheses


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_equals_transformers(model, width):
    stop_sets = list(find_stop_sets(model))
    reasons = set()
    for i, (early_stopping, length_penalty) in enumerate(
        itertools.product((False, True, "never"), (1.0, 0.0, 2.5, -1.0))
    ):
        prompt = tiny.prompts(3 + i % 5, seed=i)[0]
        stop_ids = stop_sets[(i + i // 4) % 3]
        max_tokens = 4 + i % 5
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=max_tokens,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_id=stop_ids,
            pad_token_id=0,
            do_sample=False,
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
        params = BeamParams(width=width, length_penalty=length_penalty, early_stopping=early_stopping)
        found = own_search(model, prompt, params, stop_ids, max_tokens)
        lengths = (expected.beam_indices >= 0).sum(1).tolist()
        sequences = [
            s[len(prompt) : len(prompt) + n].tolist()
            for s, n in zip(expected.sequences, lengths, strict=True)
        ]
        assert [h.token_ids for h in found] == sequences
        assert [h.score for h in found] == expected.sequences_scores.tolist()
        reasons |= {h.finish_reason for h in found}
    assert reasons == {"stop", "length"}


def test_forbidden_tokens_never_come():
    beams = BeamSearch(BeamParams(width=3), stop_ids=[9], max_tokens=2)
    step = beams.advance(np.array([[4, 5, 6]]), np.array([[-1, -np.inf, -2]], np.float32))
    assert (step.parents, step.token_ids, step.is_done) == ([0, 0], [4, 6], False)
    step = beams.advance(np.array([[9, 1], [9, 1]]), np.full((2, 2), -np.inf, np.float32))
    assert step.is_done
    assert beams.num_live == 0
    assert beams.hypotheses == []
    with pytest.raises(ValueError, match="over"):
        beams.advance(np.zeros((0, 1), np.int64), np.zeros((0, 1), np.float32))


def test_of_equals_the_lower_beam_and_token_come_first():
    beams = BeamSearch(BeamParams(width=2), stop_ids=[0], max_tokens=5)
    step = beams.advance(np.array([[7, 3, 5]]), np.full((1, 3), -1, np.float32))
    assert step.token_ids == [3, 5]
    step = beams.advance(np.array([[8, 2], [4, 1]]), np.full((2, 2), -1, np.float32))
    assert (step.parents, step.token_ids) == ([0, 0], [2, 8])


def test_stop_tokens_leave_enough_to_go_on_with():
    beams = BeamSearch(BeamParams(width=2), stop_ids=[0, 1, 2], max_tokens=5)
    assert beams.num_candidates == 8
    step = beams.advance(np.arange(8)[None], -np.arange(8, dtype=np.float32)[None])
    assert step.token_ids == [3, 4]
    assert [h.token_ids for h in beams.hypotheses] == [[0], [1]]


def test_never_looks_at_the_length_that_favours_a_beam_most():
    # A negative penalty favours short hypotheses: the next length, not the longest, is the one to beat.
    params = BeamParams(width=2, length_penalty=-1.0, early_stopping="never")
    beams = BeamSearch(params, stop_ids=[0], max_tokens=100)
    beams.advance(np.array([[0, 1, 2]]), np.array([[-0.125, -2, -4]], np.float32))
    step = beams.advance(np.array([[1, 0], [1, 3]]), np.array([[-0.5, -0.75], [-9, -9]], np.float32))
    assert [h.score for h in beams.hypotheses] == [-0.125, -5.5]
    assert not step.is_done  # -2.5 * 2 is better than -5.5
    beams = BeamSearch(
        BeamParams(width=1, length_penalty=1, early_stopping="never"), stop_ids=[0], max_tokens=4
    )
    step = beams.advance(np.array([[0, 1]]), np.array([[-1, -3]], np.float32))
    assert not step.is_done  # -3 / 4 would be better than -1
    beams = BeamSearch(
        BeamParams(width=1, length_penalty=1, early_stopping=False), stop_ids=[0], max_tokens=4
    )
    assert beams.advance(np.array([[0, 1]]), np.array([[-1, -3]], np.float32)).is_done


def test_wrong_arrays_are_refused():
    beams = BeamSearch(BeamParams(width=2), stop_ids=[0], max_tokens=5)
    for ids, logprobs in [
        (np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32)),
        (np.zeros((1, 3), np.int32), np.zeros((1, 2), np.float32)),
        (np.zeros((1, 3), np.int32), np.zeros((1, 3))),
    ]:
        with pytest.raises(ValueError, match="1 beams"):
            beams.advance(ids, logprobs)
    with pytest.raises(ValueError, match="max_tokens=0"):
        BeamSearch(BeamParams(width=2), stop_ids=[0], max_tokens=0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"width": 0}, "width"),
        ({"width": 33}, "width"),
        ({"width": True}, "width"),
        ({"width": 2.0}, "width"),
        ({"width": 2, "length_penalty": float("nan")}, "length_penalty"),
        ({"width": 2, "length_penalty": 6}, "length_penalty"),
        ({"width": 2, "length_penalty": "1"}, "length_penalty"),
        ({"width": 2, "early_stopping": "always"}, "early_stopping"),
        ({"width": 2, "early_stopping": 1}, "early_stopping"),
    ],
)
def test_senseless_parameters_are_refused(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        BeamParams(**fields)
    assert refused.value.param == param
