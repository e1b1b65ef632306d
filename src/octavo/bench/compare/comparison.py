"""All tasks, all contestants: runs the rounds and makes the parts of a report."""

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from octavo.bench.ceilings import Meter
from octavo.bench.compare.contestant import Contestant
from octavo.bench.compare.judging import is_open, judged_by, kept_up
from octavo.bench.compare.ratios import differences, is_compared, means, ratios
from octavo.bench.compare.rounds import CompareSettings, Side, restarted_note, run_rounds
from octavo.bench.compare.scenes import Task
from octavo.bench.compare.turns import Contents, order_of
from octavo.bench.compare.warnings import few_rounds, warnings_beforehand, warnings_of
from octavo.bench.experiment import Progress
from octavo.bench.workloads.item import digest

_CEILING_REPEATS: Final = 5
ContestantsOf = Callable[[Task], Sequence[Contestant]]


class Ceilings:
    """What the machine can do at most, measured before every round: how much it changed is told too."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._found: list[dict[str, Any]] = []

    def measure(self) -> None:
        """Now, with all cores; about a second."""
        self._found.append(self._meter.measure(repeats=_CEILING_REPEATS).as_dict())

    def as_dict(self) -> dict[str, Any] | None:
        """The median of each, in the form of one measurement, and the lowest and highest rates of reading."""
        if not self._found:
            return None
        first = self._found[0]
        names = [name for name in first if name != "read"]
        reads = list(zip(*(each["read"] for each in self._found), strict=True))
        return {
            "read": [
                {
                    **level[0],
                    "gb_s": statistics.median(read["gb_s"] for read in level),
                    "lowest_gb_s": min(read["gb_s"] for read in level),
                    "highest_gb_s": max(read["gb_s"] for read in level),
                }
                for level in reads
            ],
            **{name: statistics.median(each[name] for each in self._found) for name in names},
            "measurements": len(self._found),
        }


async def compare(
    contestants_of: ContestantsOf,
    tasks: Sequence[Task],
    settings: CompareSettings,
    *,
    progress: Progress,
    stop: asyncio.Event,
    ceilings: Ceilings | None = None,
    absent: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run everything; the first contestant is what the others are compared with.

    Args:
        contestants_of: those of a task, as some must be started differently for each.
        stop: when set, it ends early; what there is comes back.
        absent: contestants that cannot take part, and why.

    Returns:
        ``settings``, ``comparisons`` (one per task), ``absent``, ``ceilings``, ``warnings``, ``interrupted``.
    """
    comparisons: list[dict[str, Any]] = []
    beforehand: list[str] = []
    for task in tasks:
        if stop.is_set():
            break
        contestants = contestants_of(task)
        contents = Contents.choose(task.workload, contestants)
        beforehand += warnings_beforehand(contestants, contents, rounds=settings.rounds)
        sides = await run_rounds(
            contestants,
            contents,
            task.plan,
            settings,
            progress=progress,
            stop=stop,
            between_rounds=(lambda: None) if ceilings is None else ceilings.measure,
        )
        comparisons.append(_of_task(task, sides, contents, settings))
    found = ["Interrupted: what follows is a part of it."] if stop.is_set() else []
    found += [f"{name} is not there: {why}" for name, why in (absent or {}).items()]
    found += beforehand
    for comparison in comparisons:
        found += warnings_of(comparison, rounds=settings.rounds, interrupted=stop.is_set())
    if not stop.is_set() and (text := few_rounds(comparisons, settings.rounds)) is not None:
        found.append(text)
    return {
        "settings": settings.as_dict(),
        "comparisons": comparisons,
        "absent": dict(absent or {}),
        "ceilings": None if ceilings is None else ceilings.as_dict(),
        "warnings": list(dict.fromkeys(found)),
        "interrupted": stop.is_set(),
    }


def why_nothing(found: Mapping[str, Any]) -> str | None:
    """Why no two sides could be compared in anything; None if some could.

    Args:
        found: what ``compare`` gave.
    """
    sides = [side for each in found["comparisons"] for side in each["sides"]]
    if any(map(is_compared, found["comparisons"])):
        return None
    failures = [f"{side['name']}: {side['failure']}" for side in sides if side["failure"]]
    if failures:
        return "; ".join(dict.fromkeys(failures))
    rounds = found["settings"]["rounds"]
    reasons = [text for each in found["comparisons"] for text in warnings_of(each, rounds=rounds)]
    return reasons[0] if reasons else "no round was complete"


def _of_task(
    task: Task, sides: Sequence[Side], contents: Contents, settings: CompareSettings
) -> dict[str, Any]:
    first = sides[0]
    told = []
    for side in sides:
        entry = {
            **side.as_dict(),
            "means": means(side.rounds),
            "kept_up": kept_up(side.rounds) if is_open(task.plan.kind) else None,
            "ratios": None if side is first else ratios(first.rounds, side.rounds),
            "differences": None if side is first else differences(first.rounds, side.rounds),
        }
        if side.is_restarted:
            entry["restarted"] = restarted_note(side)
        told.append(entry)
    return {
        "task": task.name,
        "description": task.description,
        "judged_by": judged_by(task, has_objective=settings.slo is not None),
        "workload": {
            **task.workload.describe(),
            **task.plan.describe(),
            "contents": "own" if contents.own else "same",
            "digest": digest(contents.of_round(0, 0)),
        },
        "order": [
            [told[place]["name"] for place in order_of(number, len(told))]
            for number in range(len(first.rounds))
        ],
        "sides": told,
    }
