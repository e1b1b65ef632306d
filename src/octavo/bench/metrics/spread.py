"""A distribution in a few numbers, and how sure a mean is."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_WIDEST: Final = 10.0  # from whose ends nobody learns anything
PERCENTILES: Final = (50, 90, 95, 99)

# 97.5 % quantiles of Student's t, by degrees of freedom from 1.
_T: Final = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in rising order, linear between neighbours: 0 is the least, 100 the most."""
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, percentiles, greatest and number; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "mean": math.fsum(ordered) / len(ordered),
        **{f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES},
        "max": ordered[-1],
        "count": len(ordered),
    }


def interval(
    values: Sequence[float], *, least: float = -math.inf, most: float = math.inf
) -> dict[str, float | int | None]:
    """Mean of the repeats with its 95 % confidence interval by Student's t.

    It tells how far the mean of further repeats would lie, if they were like these; one repeat tells nothing,
    and has no interval.

    Args:
        least, most: what a value can be at all, where the interval ends at the latest.
    """
    mean = math.fsum(values) / len(values)
    low = high = None
    if len(values) > 1:
        half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        low, high = max(mean - half, least), min(mean + half, most)
    return {"mean": mean, "low": low, "high": high, "repeats": len(values)}


def is_telling(low: float, high: float) -> bool:
    """Whether an interval of what cannot be below 0 says something: its ends are within a factor of 10."""
    return low > 0 and high <= _WIDEST * low


def greatest(values: Sequence[float]) -> dict[str, float | int | None]:
    """The greatest of all repeats in the place of a mean: good repeats do not make a stall shorter.

    It has no interval.
    """
    return {"mean": max(values), "low": None, "high": None, "repeats": len(values)}


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """How many times one side has what the other has.

    Attributes:
        ratio: geometric mean over the rounds.
        low, high: its 95 % confidence interval; None with one round.
    """

    ratio: float
    low: float | None
    high: float | None
    rounds: int


def ratio_interval(ratios: Sequence[float]) -> RatioInterval:
    """Of one ratio from each round, all above 0: the interval by Student's t is that of their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    found = interval(logs)
    mean, low, high = (
        None if found[n] is None else math.exp(found[n] or 0.0) for n in ("mean", "low", "high")
    )
    return RatioInterval(mean or 0.0, low, high, len(logs))


def pooled_ratio_intervals(groups: Sequence[Sequence[float]]) -> list[RatioInterval]:
    """One interval for each group of ratios, all above 0, as if rounds spread alike in all groups.

    That gives groups of a round or two an interval that is of use. None of it is empty.
    """
    logs = [[math.log(ratio) for ratio in group] for group in groups]
    freedom = sum(len(group) - 1 for group in logs)
    squares = math.fsum((len(group) - 1) * statistics.variance(group) for group in logs if len(group) > 1)
    found = []
    for group in logs:
        mean = math.fsum(group) / len(group)
        low = high = None
        if freedom:
            half = t_quantile(freedom) * math.sqrt(squares / freedom / len(group))
            low, high = math.exp(mean - half), math.exp(mean + half)
        found.append(RatioInterval(math.exp(mean), low, high, len(group)))
    return found


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t; beyond 30 degrees of freedom to better than a thousandth."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom)
