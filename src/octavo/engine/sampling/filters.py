"""Temperature and the filters top_k, top_p, min_p, typical_p, in this order, and a draw from what they leave.

Only what may survive the filters is sorted or exponentiated. A filter keeps at least one token, and cuts ties
at its edge by the order in ``ranking``. Legend: V vocabulary, C candidates; a token's *score* is its logit
below the largest one, divided by the temperature, its *weight* is exp(score): its probability relative to the
most likely token.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from octavo.engine.sampling.ranking import LOWEST_LOGIT, FloatArray, IdArray, in_order, top_ids

_ROUNDING: Final = 1 + 1e-9  # more than the order of a sum can change
_BLOCK: Final = 256  # weights that are summed first when a quantile is sought


@dataclass(frozen=True, slots=True)
class Filters:
    """What shapes one row's distribution; ``top_k`` 0 and fractions of 1 (``min_p`` 0) are off."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


def draw(logits: FloatArray, largest: float, filters: Filters, number: float) -> int:
    """The token at the quantile ``number`` in [0, 1) of the filtered distribution.

    Args:
        logits: float32 [V], not changed, without NaN or +inf.
        largest: the largest of them, finite.
    """
    ids, weights = candidates(logits, largest, filters)
    at = quantile(weights, number)
    return at if ids is None else int(ids[at])


def candidates(logits: FloatArray, largest: float, filters: Filters) -> tuple[IdArray | None, FloatArray]:
    """The tokens that the filters leave and their weights: int64 [C], float32 [C].

    No ids (None) stand for the whole vocabulary; a token without probability may be among them, its weight
    is 0.
    """
    top_k, top_p, min_p = filters.top_k, filters.top_p, filters.min_p
    ids: IdArray | None = None
    if 0 < top_k < len(logits):
        ids = top_ids(logits, top_k)
        weights = _weights(logits[ids], largest, filters.temperature)
        if top_p < 1:
            weights = weights[: _num_reaching(weights, top_p * float(weights.sum(dtype=np.float64)))]
    elif top_p < 1:
        weights = _weights(logits, largest, filters.temperature)
        total = float(weights.sum(dtype=np.float64))
        goal = top_p * total
        ids = in_order(logits, _heaviest(weights, goal, total))
        weights = weights[ids]
        weights = weights[: _num_reaching(weights, goal)]
    elif min_p:
        # A little more than can survive, for weights are rounded; the exact test comes below.
        lowest = largest + filters.temperature * (math.log(min_p) * (1 + 1e-5) - 1e-5)
        ids = np.flatnonzero(logits >= np.float32(max(lowest - abs(lowest) * 1e-6, LOWEST_LOGIT)))
        weights = _weights(logits[ids], largest, filters.temperature)
    else:
        weights = _weights(logits, largest, filters.temperature)
    if ids is not None:
        ids = ids[: len(weights)]
        if min_p:
            kept = weights >= min_p
            ids, weights = ids[kept], weights[kept]
    if filters.typical_p < 1:
        kept_ids = _typical(weights, filters.typical_p)
        ids, weights = kept_ids if ids is None else ids[kept_ids], weights[kept_ids]
    return ids, weights


def quantile(weights: FloatArray, number: float) -> int:
    """Index of the first weight at which the running sum exceeds ``number`` of the total; it is not 0."""
    if len(weights) <= 2 * _BLOCK:
        mass = np.cumsum(weights, dtype=np.float64)
        return _first_above(weights, mass, number * mass[-1])
    # Block sums first: the running sum, which no vector instruction speeds up, is then needed in one block.
    num_whole = len(weights) // _BLOCK
    whole = weights[: num_whole * _BLOCK].reshape(num_whole, _BLOCK).sum(axis=1, dtype=np.float64)
    rest = weights[num_whole * _BLOCK :].sum(dtype=np.float64)
    sums = np.append(whole, rest)
    mass = np.cumsum(sums)
    goal = number * mass[-1]
    block = _first_above(sums, mass, goal)
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    before = mass[block - 1] if block else 0.0
    return block * _BLOCK + _first_above(inside, np.cumsum(inside, dtype=np.float64), goal - before)


def _first_above(weights: npt.NDArray[np.floating], mass: npt.NDArray[np.float64], goal: float) -> int:
    index = int(np.searchsorted(mass, goal, side="right"))
    if index == len(mass) or not weights[index]:  # rounding took the goal past all there is
        index = int(np.flatnonzero(weights)[-1])
    return index


def _weights(logits: FloatArray, largest: float, temperature: float) -> FloatArray:
    """Float32 [C]; a tiny temperature makes all but the largest impossible."""
    with np.errstate(over="ignore"):
        scores = logits - np.float32(largest)
        scores /= np.float32(temperature)
    np.exp(scores, out=scores)
    return scores


def _heaviest(weights: FloatArray, goal: float, total: float) -> IdArray:
    """Indices, rising, of all weights above some floor, such that their sum reaches ``goal``.

    There are hardly more of them than the smallest such set has; sorting is what takes time.
    """
    # All weights below this together are less than what may be missing.
    ids = np.flatnonzero(weights >= (total - goal) / len(weights))
    heavy = weights[ids]
    bins = _bins(heavy)
    mass = np.cumsum(np.bincount(bins, heavy)[::-1])
    lowest = len(mass) - 1 - np.searchsorted(mass, goal * _ROUNDING)
    return ids[bins >= lowest]


def _bins(values: FloatArray) -> npt.NDArray[np.int32]:
    """Numbers that are not negative in bins of rising value, eight for a factor of two: int32.

    These are the highest bits of the floats, exponent and three bits of the fraction, which sort as they do.
    """
    return values.view(np.int32) >> 20


def _num_reaching(weights: FloatArray, goal: float) -> int:
    """How many of the first weights it takes for their sum to reach ``goal``; at least 1."""
    before = np.cumsum(weights, dtype=np.float64) - weights
    return max(1, int(np.searchsorted(before, goal)))


def _typical(weights: FloatArray, typical_p: float) -> IdArray:
    """Indices of the smallest set whose probability reaches ``typical_p``, the most typical tokens first.

    A token is the more typical the nearer its information content, -log p, is to the entropy of the whole
    distribution (Meister et al., "Locally typical sampling", 2022). The indices come by rising distance, then
    rising index.
    """
    possible = np.flatnonzero(weights)
    weights = weights[possible]
    scores = np.log(weights)
    total = float(weights.sum(dtype=np.float64))
    mean = float((weights * scores).sum(dtype=np.float64)) / total
    # -log p is log(total) - score, and the entropy log(total) - mean score.
    distance = np.abs(scores - np.float32(mean))
    # Sums by distance, roughly, tell how far away the set ends: only what is nearer needs to be sorted.
    bins = _bins(distance)
    mass = np.cumsum(np.bincount(bins, weights))
    near = np.flatnonzero(bins <= np.searchsorted(mass, typical_p * total * _ROUNDING))
    # The bits of floats that are not negative sort as the floats do.
    keys = (distance[near].view(np.int32).astype(np.int64) << 32) | near
    keys.sort()
    order: IdArray = keys & 0xFFFFFFFF
    chosen: IdArray = possible[order[: _num_reaching(weights[order], typical_p * total)]]
    return chosen
