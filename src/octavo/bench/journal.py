"""The file that a long measurement grows: a line when it begins, and a line for each part that is done.

A line is written at once and in full, so that what was killed goes on where it was.
"""

import fcntl
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from octavo.core.errors import InvalidConfig, OctavoError, shown

# What a digest cannot say by itself.
_MEANING: Final = {
    "model_digest": "the model's file has changed",
    "workload_digest": "its requests are others",
}


class JournalFile(ABC):
    """An open journal, which no other process may have open. What is no journal is left as it is.

    Attributes:
        WHOLE, PART: what its first line and its other lines are of: their "kind".
        is_new: no part of it is measured yet.

    Raises:
        OctavoError: the file cannot be opened, is in use, or is no journal; names the line.
    """

    WHOLE: ClassVar[str]
    PART: ClassVar[str]

    def __init__(self, file: Path) -> None:
        self.path = file
        self.is_new = True
        self._head: dict[str, Any] = {}
        try:
            self._file = file.open("a+b", buffering=0)
        except OSError as error:
            raise OctavoError(f"cannot open {file}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise OctavoError(f"{file} is no regular file: a journal is read again")
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

    def begin(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Write the first line, or check that the one there has the same settings; gives the one that holds.

        A file without parts is nobody's: its first line is replaced.

        Args:
            head: with "settings", a mapping.

        Raises:
            InvalidConfig: the file is of another one; names what differs.
        """
        if self.is_new:
            self._file.truncate(0)
            self._append({"kind": self.WHOLE, **head})
            self._head = dict(head)
        before, now = self._head["settings"], head["settings"]
        for name in dict.fromkeys((*now, *before)):
            if before.get(name) != now.get(name):
                was, wanted = _difference(before.get(name), now.get(name))
                meaning = f" ({_MEANING[name]})" if name in _MEANING else ""
                raise InvalidConfig(
                    f"{self.path} was begun with {name}={was}, not {wanted}{meaning}; "
                    "choose another file with --journal, remove this one, or give the same settings"
                )
        return dict(self._head)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write the line of a part.

        Raises:
            OctavoError: it cannot be written.
        """
        self._take(dict(entry))  # first: Ctrl-C while it is written must not take it out of the report
        self.is_new = False
        self._append({"kind": self.PART, **entry})

    @abstractmethod
    def _take(self, entry: dict[str, Any]) -> None:
        """Keep a part.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(entry).encode() + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OctavoError(f"cannot write {self.path}: {error.strerror}") from error

    def _read(self) -> None:
        good = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                kind = self.WHOLE if number == 1 else self.PART
                if not line.endswith(b"\n") and _begins(kind, line):
                    break  # it was killed while it wrote
                try:
                    self._take_line(kind, json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise OctavoError(
                        f"{self.path}:{number}: no line of a {self.WHOLE}; it is left as it is"
                    ) from None
                good += len(line)
        self._file.truncate(good)

    def _take_line(self, kind: str, entry: Any) -> None:
        """Raises ValueError, KeyError, TypeError: it is none of ours."""
        if entry["kind"] != kind:
            raise ValueError
        told = {name: value for name, value in entry.items() if name != "kind"}
        if kind == self.PART:
            self._take(told)
            self.is_new = False
        else:
            self._head = told
            if not isinstance(told["settings"], dict):
                raise TypeError


def _begins(kind: str, line: bytes) -> bool:
    """Whether this may be the beginning of a line of that kind, and so was written here."""
    start = json.dumps({"kind": kind})[:-1].encode()
    return start.startswith(line) or line.startswith(start + b",")


def _difference(before: Any, now: Any) -> tuple[str, str]:
    """Two values that differ, to be read; of lists the first element that does, and the one before."""
    if isinstance(before, list) and isinstance(now, list):
        same = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), 0)
        before, now = (each[max(0, same - 1) : same + 1] for each in (before, now))
    return shown(before), shown(now)
