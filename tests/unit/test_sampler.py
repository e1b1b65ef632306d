import numpy as np
import pytest
from octavo.engine.sampler import _quantile, sample, uniform

from octavo.core.sampling import SamplingParams
from octavo.engine.batch_state import BatchState
from octavo.engine.step import RowOpen, StepPlan


def state_for(*params: SamplingParams, seeds: list[int] | None = None) -> BatchState:
    state = BatchState(num_rows=max(1, len(params)), table_block_sizes=[16], max_context=16)
    seeds = seeds or list(range(len(params)))
    state.apply(
        StepPlan(opened_rows=[RowOpen(i, p, s) for i, (p, s) in enumerate(zip(params, seeds, strict=True))])
    )
    return state


def draw(logits: np.ndarray, params: SamplingParams, positions: np.ndarray, seed: int = 7) -> np.ndarray:
    """One token per position, each from the same logits."""
    tokens = []
    state = state_for(params, seeds=[seed])
    for position in positions:
        chosen, failures = sample(logits[None], np.zeros(1, np.int32), np.array([position], np.int32), state)
        assert not failures
        tokens += chosen
    return np.array(tokens)


def reference(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities by the definition of each filter: sets of tokens, float64."""
    ids = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    p = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    if params.top_k:
        ids = ids[: params.top_k]
    if params.top_p < 1:
        total = sum(p[t] for t in ids)
        mass, kept = 0.0, []
        for token in ids:
            if mass >= params.top_p * total:
                break
            kept.append(token)
            mass += p[token]
        ids = kept
    ids = [t for t in ids if p[t] >= params.min_p * p.max()]
    result = np.zeros(len(logits))
    result[ids] = p[ids] / p[ids].sum()
    return result


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
    {"top_k": 10, "top_p": 0.7},
    {"top_k": 10, "top_p": 0.7, "min_p": 0.2, "temperature": 1.7},
    {"top_k": 4, "min_p": 0.5},
]


def test_greedy_takes_the_lowest_id_among_equals():
    logits = np.zeros((3, 50), np.float32)
    logits[0, [7, 30]] = 2
    logits[2, 49] = 1
    state = state_for(*[SamplingParams(temperature=0)] * 3)
    tokens, failures = sample(logits, np.arange(3, dtype=np.int32), np.zeros(3, np.int32), state)
    assert (tokens, failures) == ([7, 0, 49], {})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_distribution_matches_the_definition(settings):
    logits = np.random.default_rng(1).normal(0, 2, 40).astype(np.float32)
    params = SamplingParams(**settings)
    probabilities = reference(logits, params)
    count = 4000
    counts = np.bincount(draw(logits, params, np.arange(count)), minlength=40)
    assert counts[probabilities == 0].sum() == 0
    likely = probabilities * count >= 5
    chi_square = ((counts - probabilities * count)[likely] ** 2 / (probabilities * count)[likely]).sum()
    degrees = max(1, int(likely.sum()) - 1)
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees) + 4  # beyond four sigma


@pytest.mark.parametrize("settings", [s for s in SETTINGS if "min_p" not in s or s["min_p"] < 1], ids=str)
def test_filters_equal_those_of_transformers(settings):
    torch = pytest.importorskip("torch")
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    params = SamplingParams(**settings)
    for seed in range(5):
        logits = np.random.default_rng(seed).normal(0, 3, 200).astype(np.float32)
        scores = TemperatureLogitsWarper(float(params.temperature))(None, torch.tensor(logits)[None])
        if params.top_k:
            scores = TopKLogitsWarper(params.top_k)(None, scores)
        if params.top_p < 1:
            scores = TopPLogitsWarper(params.top_p)(None, scores)
        if params.min_p:
            scores = MinPLogitsWarper(params.min_p)(None, scores)
        theirs = scores.softmax(-1)[0].numpy()
        np.testing.assert_allclose(reference(logits, params), theirs, atol=1e-5)


def test_ties_at_the_edge_of_a_filter_keep_the_lowest_ids():
    logits = np.zeros(30, np.float32)
    assert set(draw(logits, SamplingParams(top_k=4), np.arange(300))) == {0, 1, 2, 3}
    assert set(draw(logits, SamplingParams(top_p=0.1), np.arange(300))) == {0, 1, 2}


def test_tokens_without_probability_are_never_drawn():
    logits = np.full(20, -np.inf, np.float32)
    logits[[3, 11]] = 0
    for settings in ({}, {"top_k": 10}, {"top_p": 0.999999}, {"min_p": 0.01}):
        assert set(draw(logits, SamplingParams(**settings), np.arange(200))) == {3, 11}


@pytest.mark.parametrize("weights", [[0, 0, 2, 0, 1, 0], [1], [0.1] * 10, [0, 3e-8, 1, 1e-9]])
def test_both_ends_of_the_quantile_have_probability(weights):
    weights = np.array(weights, np.float32)
    assert _quantile(weights, 0.0) == np.flatnonzero(weights)[0]
    assert _quantile(weights, np.nextafter(1.0, 0.0)) == np.flatnonzero(weights)[-1]


def test_company_in_the_batch_changes_nothing():
    rng = np.random.default_rng(2)
    params = [SamplingParams(**SETTINGS[i % len(SETTINGS)]) for i in range(31)] + [
        SamplingParams(temperature=0)
    ]
    logits = rng.normal(0, 3, (32, 1001)).astype(np.float32)
    positions = rng.integers(0, 5000, 32).astype(np.int32)
    state = state_for(*params)
    rows = np.arange(32, dtype=np.int32)
    together, _ = sample(logits, rows, positions, state)
    order = rng.permutation(32)
    shuffled, _ = sample(logits[order], rows[order], positions[order], state)
    assert [together[i] for i in order] == shuffled
    for i in range(32):
        assert sample(logits[i : i + 1], rows[i : i + 1], positions[i : i + 1], state)[0] == [together[i]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits_are_named_and_hurt_no_other_row(bad, temperature):
    logits = np.random.default_rng(3).normal(size=(3, 40)).astype(np.float32)
    clean = logits.copy()
    logits[1, 17] = bad
    state = state_for(*[SamplingParams(temperature=temperature)] * 3)
    rows, positions = np.arange(3, dtype=np.int32), np.array([5, 6, 7], np.int32)
    tokens, failures = sample(logits, rows, positions, state)
    expected, _ = sample(clean, rows, positions, state)
    assert list(failures) == [1]
    assert "position 6" in failures[1]
    assert (tokens[0], tokens[2]) == (expected[0], expected[2])
    logits[1] = -np.inf
    assert list(sample(logits, rows, positions, state)[1]) == [1]


def test_logits_are_not_changed():
    logits = np.random.default_rng(4).normal(size=(2, 40)).astype(np.float32)
    before = logits.copy()
    state = state_for(SamplingParams(top_p=0.5), SamplingParams(temperature=0))
    sample(logits, np.arange(2, dtype=np.int32), np.zeros(2, np.int32), state)
    assert np.array_equal(logits, before)


def test_numbers_are_uniform_and_depend_on_seed_and_position_only():
    seeds = np.arange(300, dtype=np.uint64) * np.uint64(0x123456789ABCDEF)
    positions = np.arange(300)
    numbers = uniform(np.repeat(seeds, 300), np.tile(positions, 300))
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    assert len(np.unique(numbers)) == len(numbers)
    assert abs(numbers.mean() - 0.5) < 5 / np.sqrt(12 * len(numbers))
    table = numbers.reshape(300, 300)
    for neighbours in (table[1:] * table[:-1], table[:, 1:] * table[:, :-1]):
        assert abs(neighbours.mean() - 0.25) < 0.005
    assert uniform(seeds[17], positions[4]) == table[17, 4]
    assert uniform(np.uint64(2**64 - 1), np.int32(2**31 - 1)).shape == (1,)


def test_uniform_is_splitmix64():
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
        assert uniform(np.uint64(seed), np.int64(position))[0] == (bits >> 11) * 2.0**-53
