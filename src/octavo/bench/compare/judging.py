"""By which numbers a comparison is decided, and whether a side kept up with the requests that came."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.bench.compare.ratios import GOODPUT, Rounds, is_whole
from octavo.bench.compare.scenes import Task

LATENCIES: Final = ("ttft_s.p50", "tpot_s.p50", "e2e_s.p50")
# Requests come at their own times, however fast the answers are.
_OPEN: Final = ("poisson", "bursty", "trace")
_DRAIN: Final = 0.1  # of the time in which requests came
_MEDIANS: Final = 1.5


def judged_by(task: Task, *, has_objective: bool) -> list[str]:
    """The metrics that say who is better, the first first.

    Where requests come at their own times, all who keep up answer as many tokens per second as are asked for:
    what differs is how long people wait.
    """
    found = LATENCIES if is_open(task.plan.kind) else (task.rate,)
    return [GOODPUT, *found] if has_objective else [*found]


def is_open(arrivals: str) -> bool:
    """Whether the rate is given by the arrivals; all at once is a burst, whose end is the engine's own."""
    return arrivals in _OPEN


def kept_up(rounds: Rounds) -> bool | None:
    """Whether a side had answered soon after the last request came, in most of its whole rounds.

    Soon is within a tenth of the time in which requests came, or half as much again as its median E2E. Who is
    slower than the requests come has a queue that grows: the last waits twice as long as the median, and all
    wait the longer the more there are.
    """
    whole = [each for each in rounds if is_whole(each)]
    if not whole:
        return None
    return 2 * sum(_was_soon_over(each) for each in whole) > len(whole)


def drain_s(summary: Mapping[str, Any]) -> float:
    """From the moment at which the last request was due to the end of the last answer."""
    found: float = summary["duration_s"] - summary["last_due_s"]
    return found


def who_kept_up(sides: Sequence[Mapping[str, Any]], *, did: bool) -> list[str]:
    """Names of the sides of a report that did, or did not."""
    return [side["name"] for side in sides if side["kept_up"] is did]


def _was_soon_over(summary: Mapping[str, Any]) -> bool:
    median_s = (summary["e2e_s"] or {}).get("p50", 0.0)
    return drain_s(summary) <= max(_DRAIN * float(summary["last_due_s"]), _MEDIANS * float(median_s))
