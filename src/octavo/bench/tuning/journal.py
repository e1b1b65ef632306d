"""The journal of a race: a line for each round.

A round that was cut off is measured anew: its parts would be minutes or days apart, and no longer comparable.
"""

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
        scores = {Candidate.from_dict(each["candidate"]): each["score"] for each in entry["measured"]}
        self.rounds.append(Round(scores, entry["seconds"]))
        self.entries.append(entry)
