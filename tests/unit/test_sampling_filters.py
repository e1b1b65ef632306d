"""Temperature and filters: against their definitions, against transformers, and at their edges."""

import numpy as np
import pytest
from sampling_case import draw_many, reference

from octavo.core.sampling import SamplingParams
from octavo.engine.sampling.filters import Filters, candidates, draw, quantile
from octavo.engine.sampling.ranking import in_order, rank_of, top_ids

SETTINGS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"typical_p": 1e-6},
    {"top_k": 10, "top_p": 0.7},
    {"top_k": 10, "top_p": 0.7, "min_p": 0.2, "temperature": 1.7},
    {"top_k": 4, "min_p": 0.5},
    {"top_p": 0.8, "min_p": 0.02},
    {"top_k": 12, "typical_p": 0.6},
    {"top_p": 0.9, "typical_p": 0.5, "temperature": 1.3},
    {"min_p": 0.05, "typical_p": 0.7},
]


def filters_of(params: SamplingParams) -> Filters:
    return Filters(params.temperature, params.top_k, params.top_p, params.min_p, params.typical_p)


def distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """What the sampler draws from."""
    ids, weights = candidates(logits, float(logits.max()), filters_of(params))
    result = np.zeros(len(logits))
    result[np.arange(len(logits)) if ids is None else ids] = weights / weights.sum(dtype=np.float64)
    return result


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("vocab", "spread"), [(40, 2.0), (1000, 3.0), (5003, 1.0), (5003, 5.0)])
def test_the_candidates_are_those_of_the_definition(settings, vocab, spread):
    params = SamplingParams(**settings)
    for seed in range(3):
        logits = np.random.default_rng(seed).normal(0, spread, vocab).astype(np.float32)
        ours, exact = distribution(logits, params), reference(logits, params)
        # Weights are float32: what is less likely than 1e-38 may be nothing.
        np.testing.assert_array_equal(ours > 1e-30, exact > 1e-30)
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_follow_the_distribution(settings):
    logits = np.random.default_rng(1).normal(0, 2, 40).astype(np.float32)
    params = SamplingParams(**settings)
    probabilities = reference(logits, params)
    count = 4000
    counts = np.bincount(draw_many(logits, params, count), minlength=40)
    assert counts[probabilities == 0].sum() == 0
    likely = probabilities * count >= 5
    chi_square = ((counts - probabilities * count)[likely] ** 2 / (probabilities * count)[likely]).sum()
    degrees = max(1, int(likely.sum()) - 1)
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees) + 4  # beyond four sigma


@pytest.mark.parametrize("settings", [s for s in SETTINGS if s.get("min_p", 0) < 1], ids=str)
def test_filters_equal_those_of_transformers(settings):
    torch = pytest.importorskip("torch")
    import transformers as hf

    params = SamplingParams(**settings)
    for seed in range(5):
        logits = np.random.default_rng(seed).normal(0, 3, 200).astype(np.float32)
        scores = hf.TemperatureLogitsWarper(float(params.temperature))(None, torch.tensor(logits)[None])
        if params.top_k:
            scores = hf.TopKLogitsWarper(params.top_k)(None, scores)
        if params.top_p < 1:
            scores = hf.TopPLogitsWarper(params.top_p)(None, scores)
        if params.min_p:
            scores = hf.MinPLogitsWarper(params.min_p)(None, scores)
        if params.typical_p < 1:
            scores = hf.TypicalLogitsWarper(params.typical_p)(None, scores)
        np.testing.assert_allclose(distribution(logits, params), scores.softmax(-1)[0].numpy(), atol=1e-5)


def test_ties_at_the_edge_of_a_filter_keep_the_lowest_ids():
    logits = np.zeros(30, np.float32)
    assert set(draw_many(logits, SamplingParams(top_k=4), 300)) == {0, 1, 2, 3}
    assert set(draw_many(logits, SamplingParams(top_p=0.1), 300)) == {0, 1, 2}
    assert set(draw_many(logits, SamplingParams(typical_p=0.1), 300)) == {0, 1, 2}
    assert set(draw_many(logits, SamplingParams(min_p=1.0), 600)) == set(range(30))
    logits[:10] = -0.0  # equals 0
    assert np.array_equal(top_ids(logits, 25), np.arange(25))
    many = np.zeros(5000, np.float32)
    many[4000:] = 1
    assert np.array_equal(top_ids(many, 3), [4000, 4001, 4002])
    assert np.array_equal(top_ids(many, 1002), [*range(4000, 5000), 0, 1])


def test_logits_that_differ_keep_their_order_though_their_weights_are_equal():
    logits = np.array([1e-9, 2e-9, 3e-9, -5], np.float32)
    assert set(draw_many(logits, SamplingParams(top_k=1), 50)) == {2}
    assert set(draw_many(logits, SamplingParams(top_p=0.5), 200)) == {1, 2}


@pytest.mark.parametrize("num_tokens", [1, 2, 63, 64, 128, 1000, 8195])
def test_the_order_is_that_of_a_stable_sort(num_tokens):
    rng = np.random.default_rng(num_tokens)
    for logits in (
        rng.normal(0, 3, num_tokens).astype(np.float32),
        rng.integers(-3, 3, num_tokens).astype(np.float32),
        np.where(rng.random(num_tokens) < 0.9, -np.inf, rng.normal(size=num_tokens)).astype(np.float32),
        np.arange(num_tokens, dtype=np.float32) * np.float32(3e34),
    ):
        order = np.argsort(-logits.astype(np.float64), kind="stable")
        assert np.array_equal(in_order(logits, np.arange(num_tokens)), order)
        possible = order[np.isfinite(logits[order])]
        for k in (1, 2, 3, 20, 63, 64, 500, num_tokens - 1, num_tokens, num_tokens + 1):
            if k > 0:
                assert np.array_equal(top_ids(logits, k), possible[:k])
        for place in {0, num_tokens // 2, num_tokens - 1}:
            assert rank_of(logits, int(order[place])) == place + 1


def test_tokens_without_probability_are_never_drawn():
    logits = np.full(20, -np.inf, np.float32)
    logits[[3, 11]] = 0
    for settings in ({}, {"top_k": 10}, {"top_p": 0.999999}, {"min_p": 0.01}, {"typical_p": 0.99}):
        assert set(draw_many(logits, SamplingParams(**settings), 200)) == {3, 11}


@pytest.mark.parametrize("weights", [[0, 0, 2, 0, 1, 0], [1], [0.1] * 10, [0, 3e-8, 1, 1e-9]])
@pytest.mark.parametrize("width", [1, 300])
def test_both_ends_of_the_quantile_have_probability(weights, width):
    weights = np.repeat(np.array(weights, np.float32), width)
    assert quantile(weights, 0.0) == np.flatnonzero(weights)[0]
    assert quantile(weights, np.nextafter(1.0, 0.0)) == np.flatnonzero(weights)[-1]


def test_the_quantile_of_many_weights_is_that_of_their_running_sum():
    rng = np.random.default_rng(5)
    weights = np.exp(rng.normal(0, 3, 3001)).astype(np.float32)
    weights[rng.random(3001) < 0.3] = 0
    weights[512:1024] = 0
    mass = np.cumsum(weights, dtype=np.float64)
    for number in rng.random(500):
        assert quantile(weights, number) == np.searchsorted(mass, number * mass[-1], side="right")


def test_extreme_temperatures():
    logits = np.array([0.0, 3e38, 1.0, -3e38], np.float32)
    assert draw(logits, 3e38, Filters(1e-40), 0.999) == 1
    flat = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    assert set(draw_many(flat, SamplingParams(temperature=1e6), 100)) == {0, 1, 2, 3}
    assert set(draw_many(flat, SamplingParams(temperature=5e-324), 50)) == {3}
    assert set(draw_many(flat, SamplingParams(temperature=1e6, min_p=1e-300), 100)) == {0, 1, 2, 3}
