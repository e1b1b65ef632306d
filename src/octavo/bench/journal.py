"""The file that a long measurement grows: a line when it begins, and a line for each part that is done.

A line is written at once and in full, so that what was killed goes on where it was.
"""

import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from octavo.core.errors import InvalidConfig, OctavoError


class JournalFile(ABC):
    """An open journal, which no other process may have open.

    Attributes:
        WHOLE, PART: what its first line and its other lines are of: their "kind".
        head: the first line; None in a new file.

    Raises:
        OctavoError: the file cannot be opened, is in use, or is no journal; names the line.
    """

    WHOLE: ClassVar[str]
    PART: ClassVar[str]

    def __init__(self, file: Path) -> None:
        self.path = file
        self.head: dict[str, Any] | None = None
        self._has_parts = False
        try:
            self._file = file.open("a+b")
        except OSError as error:
            raise OctavoError(f"cannot open {file}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            self._file.close()
            raise OctavoError(f"{file} is in use by another {self.WHOLE}") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def begin(self, head: Mapping[str, Any]) -> None:
        """Write the first line, or check that the one there is has the same settings.

        A file without parts is nobody's: its first line is replaced.

        Raises:
            InvalidConfig: the file is of another one; names what differs.
        """
        if not self._has_parts:
            self._file.truncate(0)
            self._append({"kind": self.WHOLE, **head})
            self.head = dict(head)
            return
        assert self.head is not None
        before, now = self.head["settings"], head["settings"]
        different = [name for name in now if before.get(name) != now[name]]
        if different:
            name = different[0]
            raise InvalidConfig(
                f"{self.path} was begun with {name}={before.get(name)!r}, not {now[name]!r}; "
                "choose another file, or the same settings"
            )

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write the line of a part."""
        self._append({"kind": self.PART, **entry})
        self._take(dict(entry))
        self._has_parts = True

    @abstractmethod
    def _take(self, entry: dict[str, Any]) -> None:
        """Keep a part.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """

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
                if entry["kind"] == self.WHOLE and number == 1:
                    self.head = entry
                elif entry["kind"] == self.PART and number > 1:
                    self._take(entry)
                    self._has_parts = True
                else:
                    raise ValueError
            except (ValueError, KeyError, TypeError):
                raise OctavoError(f"{self.path}:{number}: no line of a {self.WHOLE}") from None
            good += len(line)
        self._file.truncate(good)
