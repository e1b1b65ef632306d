"""How many times better one side is than another, round by round."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from octavo.bench.metrics.spread import interval, ratio_interval

Better = Literal["more", "less"]
# Numbers of a summary that are compared, and whether more of them or less is better.
METRICS: Final[Mapping[str, Better]] = {
    "output_tokens_per_s": "more",
    "prompt_tokens_per_s": "more",
    "requests_per_s": "more",
    "ttft_s.p50": "less",
    "ttft_s.p99": "less",
    "tpot_s.p50": "less",
    "tpot_s.p99": "less",
    "itl_s.p99": "less",
    "e2e_s.p50": "less",
    "e2e_s.p99": "less",
}
Rounds = Sequence[Mapping[str, Any] | None]


def means(rounds: Rounds) -> dict[str, dict[str, Any]]:
    """Mean of each metric over the rounds in which it is known, with its 95 % interval."""
    found = {}
    for metric in METRICS:
        values = [value for each in rounds if (value := metric_of(each, metric)) is not None]
        if values:
            found[metric] = interval(values)
    return found


def ratio(metric: str, ours: Rounds, theirs: Rounds) -> dict[str, Any] | None:
    """How many times better ours is: 2 is twice the rate or half the time.

    Each round gives one ratio of two runs that were minutes apart, so what the machine did to both cancels.
    Their geometric mean has a 95 % interval by Student's t on the logarithms. None if no round has both.
    """
    is_rate = METRICS[metric] == "more"
    found = []
    for our, their in zip(ours, theirs, strict=False):
        a, b = metric_of(our, metric), metric_of(their, metric)
        if a is not None and b is not None and a > 0 and b > 0:
            found.append(a / b if is_rate else b / a)
    if not found:
        return None
    known = ratio_interval(found)
    return {"ratio": known.ratio, "low": known.low, "high": known.high, "rounds": found}


def ratios(ours: Rounds, theirs: Rounds) -> dict[str, dict[str, Any]]:
    """Of all metrics that both have."""
    found = {metric: ratio(metric, ours, theirs) for metric in METRICS}
    return {metric: each for metric, each in found.items() if each is not None}


def metric_of(summary: Mapping[str, Any] | None, metric: str) -> float | None:
    """A metric of a round that was complete and answered in full; else None."""
    if summary is None or not summary["complete"] or summary["requests"]["failed"]:
        return None
    found: Any = summary
    for name in metric.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found if isinstance(found, (int, float)) else None
