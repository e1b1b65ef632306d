"""The journal of a race: a line for each round.

A round that was cut off is measured anew: its parts would be minutes or days apart, and no longer comparable.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from octavo.bench.journal import JournalFile
from octavo.bench.tuning.candidates import Candidate
from octavo.bench.tuning.racing import Round


class Journal(JournalFile):
    """Of a race.

    Attributes:
        entries: the rounds as they were written.
        rounds: the same for the rules.
    """

    WHOLE: ClassVar[str] = "race"
    PART: ClassVar[str] = "round"

    def __init__(self, file: Path) -> None:
        self.entries: list[dict[str, Any]] = []
        self.rounds: list[Round] = []
        super().__init__(file)

    def _take(self, entry: dict[str, Any]) -> None:
        self.rounds.append(as_round(entry))
        self.entries.append(entry)


def as_round(entry: Mapping[str, Any]) -> Round:
    """A round for the rules. The score of who ran twice is the geometric mean, or none if one is missing."""
    scores: dict[Candidate, float | None] = {}
    for one, runs in runs_of(entry).items():
        found = [run["score"] for run in runs]
        scores[one] = None if None in found else math.prod(found) ** (1 / len(found))
    return Round(scores, entry["seconds"], entry["budget_s"])


def runs_of(entry: Mapping[str, Any]) -> dict[Candidate, list[Mapping[str, Any]]]:
    """What a round measured, by candidate."""
    found: dict[Candidate, list[Mapping[str, Any]]] = {}
    for each in entry["measured"]:
        found.setdefault(Candidate.from_dict(each["candidate"]), []).append(each)
    return found
