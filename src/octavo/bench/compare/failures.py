"""Who failed, in words that stand before all ratios."""

from collections.abc import Mapping
from typing import Any

from octavo.bench.compare.ratios import is_whole
from octavo.bench.metrics.warnings import num_failed

Side = Mapping[str, Any]


def trouble_of(comparison: Mapping[str, Any], rounds: int) -> list[str]:
    """Of each side that stopped answering, or of which requests failed, a clause.

    Args:
        rounds: that were wanted.
    """
    where = f" of scene {comparison['task']}" if comparison["task"] else ""
    found = []
    for side in comparison["sides"]:
        known = [each for each in side["rounds"] if each is not None]
        if when := stop_of(side, rounds):
            found.append(f"{side['name']} stopped answering {when}{where}")
        elif failed := num_failed(known):
            total = sum(each["requests"]["total"] for each in known)
            found.append(f"{failed:,} of {total:,} requests to {side['name']}{where} failed")
    return found


def stop_of(side: Side, rounds: int) -> str | None:
    """When a side that dropped out stopped: ``"in round 2 of 4"``; None of one that did not.

    That is the round of its last answer; if it answered all of that round, the next.
    """
    if not side["failure"]:
        return None
    answered = [n for n, each in enumerate(side["rounds"], 1) if each is not None and each["requests"]["ok"]]
    if not answered:
        return "before the first round" if not any(side["rounds"]) else f"in round 1 of {rounds}"
    last = answered[-1]
    return f"in round {last + is_whole(side['rounds'][last - 1])} of {rounds}"
