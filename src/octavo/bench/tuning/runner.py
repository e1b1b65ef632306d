"""Runs a race."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from octavo.bench.separate import measure, what_failed
from octavo.bench.tuning.journal import Journal
from octavo.bench.tuning.objective import ObjectiveName, score
from octavo.bench.tuning.racing import Race, Standing, standing
from octavo.core.errors import OctavoError

Show = Callable[[float, str], None]


def run_race(
    race: Race, command: Sequence[str], seed: int, objective: ObjectiveName, journal: Journal, *, show: Show
) -> Standing:
    """Measure round after round, each candidate in a process of its own, until the race is over.

    Args:
        command: that measures the workload, without the options of a candidate and without a seed.
        seed: of the first round. Each round has other requests, the same for all who run in it.
        show: is told the seconds that are spent and what runs now.

    Raises:
        OctavoError: the baseline cannot be measured.
        KeyboardInterrupt: complete rounds are in the journal.
    """
    while (now := standing(race, journal.rounds)).running:
        number = len(journal.rounds)
        order = [race.baseline, *now.running]
        if number % 2:
            order.reverse()  # there and back: what drifts evenly cancels
        if now.phase != "confirm":
            # Its luck would be that of all who are compared with it, so it runs twice: at both ends.
            order = [race.baseline, *(one for one in order if one != race.baseline), race.baseline]
        begin = time.monotonic()
        measured = []
        for place, one in enumerate(order, 1):
            spent_s = now.spent_s + time.monotonic() - begin
            show(spent_s, f"{now.phase}, round {number + 1}, {place} of {len(order)}: {one}")
            entry = _measure([*command, "--seed", str(seed + number), *one.options()], objective)
            if one == race.baseline and entry["error"]:
                raise OctavoError(f"the baseline ({one}) cannot be measured: {entry['error']}")
            measured.append({"candidate": one.as_dict(), **entry})
        seconds = round(time.monotonic() - begin, 3)
        journal.add(
            {
                "number": number,
                "phase": now.phase,
                "budget_s": race.budget_s,
                "seconds": seconds,
                "measured": measured,
            }
        )
    return now


def _measure(command: Sequence[str], objective: ObjectiveName) -> dict[str, Any]:
    """One run: what it found, its score, and as ``error`` why there is no score."""
    found = measure(command)
    error = what_failed(found)  # who refuses requests looks fast: that is no candidate
    value = None if error else score(objective, found["summary"])
    if value is None and not error:
        error = "it gave no tokens"
    return {**found, "score": value, "error": error}
