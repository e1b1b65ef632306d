"""The file that a sweep grows: a line when it begins, and a line for each point that is measured.

A line is written at once and in full, so that a sweep that was killed goes on where it was.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from octavo.bench.sweep.grid import Value, key_of
from octavo.core.errors import InvalidConfig, OctavoError


class Journal:
    """An open journal, which no other process may have open.

    Attributes:
        points: what was measured, in the order of the file; one entry for each point.

    Raises:
        OctavoError: the file cannot be opened, is in use, or is no journal; names the line.
    """

    def __init__(self, file: Path) -> None:
        self.path = file
        self.head: dict[str, Any] | None = None
        self.points: dict[tuple[Value, ...], dict[str, Any]] = {}
        try:
            self._file = file.open("a+b")
        except OSError as error:
            raise OctavoError(f"cannot open {file}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            self._file.close()
            raise OctavoError(f"{file} is in use by another sweep") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def begin(self, head: Mapping[str, Any]) -> None:
        """Write the first line, or check that the one there is has the same settings.

        Raises:
            InvalidConfig: the file is of another sweep; names what differs.
        """
        if self.head is None:
            self._append({"kind": "sweep", **head})
            self.head = dict(head)
            return
        before, now = self.head["settings"], head["settings"]
        different = [name for name in now if before.get(name) != now[name]]
        if different:
            name = different[0]
            raise InvalidConfig(
                f"{self.path} was begun with {name}={before.get(name)!r}, not {now[name]!r}; "
                "choose another file, or the same settings"
            )

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write the line of a point."""
        self._append({"kind": "point", **entry})
        self.points[key_of(entry["point"])] = dict(entry)

    def has(self, point: Mapping[str, Any]) -> bool:
        """Whether a point was measured. One that failed was not."""
        entry = self.points.get(key_of(point))
        return entry is not None and entry.get("error") is None

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> None:
        self._file.seek(0)
        good = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break  # it was killed while it wrote
            try:
                entry = json.loads(line)
                if entry["kind"] == "sweep" and number == 1:
                    self.head = entry
                elif entry["kind"] == "point" and number > 1:
                    self.points[key_of(entry["point"])] = entry
                else:
                    raise ValueError
            except (ValueError, KeyError, TypeError):
                raise OctavoError(f"{self.path}:{number}: no line of a sweep") from None
            good += len(line)
        self._file.truncate(good)
