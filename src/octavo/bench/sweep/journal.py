"""The journal of a sweep: a line for each point that is measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from octavo.bench.journal import JournalFile
from octavo.bench.sweep.grid import Value, key_of


class Journal(JournalFile):
    """Of a sweep.

    Attributes:
        points: what was measured, in the order of the file; one entry for each point.
    """

    WHOLE: ClassVar[str] = "sweep"
    PART: ClassVar[str] = "point"

    def __init__(self, file: Path) -> None:
        self.points: dict[tuple[Value, ...], dict[str, Any]] = {}
        super().__init__(file)

    def has(self, point: Mapping[str, Any]) -> bool:
        """Whether a point was measured. One that failed was not."""
        entry = self.points.get(key_of(point))
        return entry is not None and entry.get("error") is None

    def _take(self, entry: dict[str, Any]) -> None:
        self.points[key_of(entry["point"])] = entry
