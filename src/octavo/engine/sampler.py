"""From logits to tokens. Legend: S sampled rows, V vocabulary.

A row's token depends on its own logits, settings, seed and position only. Random numbers come from a counter,
not from a stream: company in the batch, order and preemption cannot change them.
"""

import numpy as np
import numpy.typing as npt

from octavo.engine.batch_state import BatchState

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

# SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014); the
# finalizer is variant 13 of Stafford's mixers.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), a pure function of (seed, position), elementwise: float64 [S]."""
    with np.errstate(over="ignore"):
        stream = _mix(np.atleast_1d(seeds) + _GAMMA)
        bits = _mix(stream + (np.atleast_1d(positions).astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def sample(
    logits: FloatArray, rows: IntArray, positions: IntArray, state: BatchState
) -> tuple[list[int], dict[int, str]]:
    """Choose a token for each row of ``logits``.

    Args:
        logits: float32 [S, V]; not changed.
        rows: int32 [S], the permanent row of each.
        positions: int32 [S], position in its sequence of the token to be chosen.
        state: holds the rows' settings.

    Returns:
        S token ids, and the reason of failure by index where there is none (its token id is then -1).
    """
    best = logits.argmax(axis=1)  # the lowest id among equals; a NaN counts as the largest
    tokens: list[int] = best.tolist()
    failures: dict[int, str] = {}
    best_logits = logits[np.arange(len(best)), best]
    if not np.isfinite(best_logits).all():
        for i in np.flatnonzero(~np.isfinite(best_logits)).tolist():
            tokens[i] = -1
            failures[i] = (
                f"the model gave no usable logits at position {positions[i]}: largest is {best_logits[i]}"
            )
    temperature = state.temperature[rows]
    if temperature.any():
        numbers = uniform(state.seed[rows], positions)
        # One row at a time: its whole vocabulary stays in the cache, and no other row can touch its result.
        for i in np.flatnonzero(temperature).tolist():
            if i not in failures:
                row = rows[i]
                with np.errstate(over="ignore"):  # a tiny temperature makes all but the largest impossible
                    scores = (logits[i] - best_logits[i]) / temperature[i]
                tokens[i] = _draw(
                    scores,
                    int(state.top_k[row]),
                    float(state.top_p[row]),
                    float(state.min_p[row]),
                    float(numbers[i]),
                )
    return tokens, failures


def likeliest(logits: FloatArray, count: int) -> list[tuple[int, float]]:
    """The ``count`` most likely tokens with their log-probabilities, best first, then by rising id."""
    largest = logits.max()
    log_total = np.log(np.exp(logits - largest).sum(dtype=np.float64))
    ids = np.argsort(-logits, kind="stable")[:count]
    return [(int(i), float(logits[i] - largest) - float(log_total)) for i in ids]


def _draw(scores: FloatArray, top_k: int, top_p: float, min_p: float, number: float) -> int:
    """Token at the quantile ``number`` of the filtered distribution of ``scores`` (their largest is 0).

    Filters cut a list in the order of falling probability, then rising id, so that ties at an edge are cut
    the same way everywhere. Only what may survive them is sorted.
    """
    weights = np.exp(scores)  # probability relative to the most likely token
    num_tokens = len(weights)
    if 0 < top_k < num_tokens:
        kth = num_tokens - top_k
        candidates, kept = _ranked(weights, float(np.partition(weights, kth)[kth]))
        candidates, kept = candidates[:top_k], kept[:top_k]
        total = float(kept.sum(dtype=np.float64))
    elif top_p < 1:
        # All tokens below the floor together weigh less than 1 - top_p: none is in the smallest set.
        total = float(weights.sum(dtype=np.float64))
        candidates, kept = _ranked(weights, (1.0 - top_p) * total / num_tokens)
    else:
        return _quantile(np.where(weights >= min_p, weights, 0) if min_p else weights, number)
    if top_p < 1:
        before = np.cumsum(kept, dtype=np.float64) - kept
        kept = kept[: max(1, int(np.searchsorted(before, top_p * total)))]
    if min_p:
        kept = kept[: int(np.count_nonzero(kept >= min_p))]
    return int(candidates[_quantile(kept, number)])


def _ranked(weights: FloatArray, floor: float) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Ids and weights of the tokens of at least ``floor``, by falling weight, then rising id."""
    ids = np.flatnonzero(weights >= floor)
    # The bits of non-negative floats sort as the floats do; one integer sort is 10 times a stable argsort.
    falling = np.uint64(0xFFFFFFFF) - weights[ids].view(np.uint32)
    keys = falling << np.uint64(32) | ids.astype(np.uint64)
    keys.sort()
    ids = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return ids, weights[ids]


def _quantile(weights: FloatArray, number: float) -> int:
    """Index of the first weight at which the running sum exceeds ``number`` of the total; it is not 0."""
    mass = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(mass, number * mass[-1], side="right"))
    if index == len(mass):  # the product rounded up to the total
        index = int(np.flatnonzero(weights)[-1])
    return index
