"""What better means, as one number: more is better, and only ratios of it matter."""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from octavo.core.errors import InvalidConfig, shown

ObjectiveName = Literal["throughput", "latency", "balanced", "goodput"]
OBJECTIVES: Final[tuple[ObjectiveName, ...]] = get_args(ObjectiveName)
# In words. A ratio of 1.1 is a tenth more of what there should be more of, or as much less time.
MEANS: Final[Mapping[ObjectiveName, str]] = {
    "throughput": "more output tokens per second",
    "latency": "less time: geometric mean of mean TTFT and mean TPOT",
    "balanced": "more output tokens per second and less time (geometric mean of mean TTFT and mean TPOT), "
    "both alike: the geometric mean of the two ratios",
    "goodput": "more requests per second that keep the objective, half a request added to those of each run",
}


def choose(name: str | None, *, has_slo: bool) -> ObjectiveName:
    """The objective that was asked for: goodput where there is a service level objective.

    Raises:
        InvalidConfig: there is no such objective, or the two contradict each other.
    """
    known = [each for each in OBJECTIVES if each != "goodput"]
    if name is None:
        return "goodput" if has_slo else "balanced"
    if name not in known:
        raise InvalidConfig(f"objective={shown(name)}: choose one of {', '.join(known)}, or give --slo")
    if has_slo:
        raise InvalidConfig(f"objective={name}: with --slo the objective is goodput; give one of the two")
    return next(each for each in OBJECTIVES if each == name)


def score(objective: ObjectiveName, summary: Mapping[str, Any]) -> float | None:
    """Of the summary of one run (``metrics.summary.combine``); None if it does not tell."""
    if objective == "goodput":
        kept_per_s, duration_s = _mean(summary, "goodput.requests_per_s"), _mean(summary, "duration_s")
        if kept_per_s is None or not duration_s:
            return None
        return kept_per_s + 0.5 / duration_s  # or a run that keeps none would be divided by
    throughput = _mean(summary, "output_tokens_per_s") or None
    if objective == "throughput":
        return throughput
    times = [_mean(summary, f"{name}.mean") for name in ("ttft_s", "tpot_s")]
    speeds = [1 / time for time in times if time]
    if not speeds:
        return None
    speed = math.prod(speeds) ** (1 / len(speeds))
    if objective == "latency":
        return speed
    return None if throughput is None else math.sqrt(throughput * speed)


def _mean(summary: Mapping[str, Any], name: str) -> float | None:
    found = summary.get(name)
    return None if found is None else float(found["mean"])
