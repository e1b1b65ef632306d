"""Files read line by line; what is wrong is told with the file's name and the line's number."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from octavo.bench.workloads.item import MOST_TOKENS
from octavo.core.errors import InvalidRequest, shown

_MOST: Final = 1e18  # whatever a number means here, seconds or milliseconds, more is a mistake


class MalformedLine(InvalidRequest):
    """A line of a trace that does not say what it should.

    Attributes:
        line: its number, from 1.
    """

    def __init__(self, file: Path, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}")
        self.line = line


def numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers.

    Raises:
        InvalidRequest: the file cannot be read.
        MalformedLine: a line is not UTF-8.
    """
    number = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if text := line.decode("utf-8-sig" if number == 1 else "utf-8").strip():
                    yield number, text
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MalformedLine(file, number, f"is not UTF-8: {error.reason}") from error


def json_objects(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON object of each line.

    Raises:
        MalformedLine: a line is none.
    """
    for number, text in numbered_lines(file):
        try:
            found = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise MalformedLine(file, number, f"is not JSON: {error}") from None
        except ValueError:
            raise MalformedLine(file, number, "has an integer of thousands of digits") from None
        if not isinstance(found, dict):
            raise MalformedLine(file, number, f"must be a JSON object, not {shown(found)}")
        yield number, found


class Fields:
    """The fields of one line, or of an object in it, taken with their types checked.

    Args:
        where: what the object is called; "" is the line itself.
    """

    def __init__(self, file: Path, line: int, values: Mapping[str, Any], where: str = "") -> None:
        self.file = file
        self.line = line
        self._values = values
        self._where = where

    def wrong(self, message: str) -> MalformedLine:
        """The error to raise."""
        return MalformedLine(self.file, self.line, f"{self._where}: {message}" if self._where else message)

    def within(self, where: str, value: Any) -> "Fields":
        """Those of an object in the line."""
        if not isinstance(value, dict):
            raise self.wrong(f"{where}={shown(value)}: must be a JSON object")
        return Fields(self.file, self.line, value, where)

    def only(self, *known: str) -> None:
        """Refuse fields of other names: a mistyped one would have no effect."""
        if unknown := [name for name in self._values if name not in known]:
            raise self.wrong(f"unknown key {shown(unknown[0])}: the known ones are {', '.join(known)}")

    def tokens(self, name: str, *, least: int) -> int:
        """A number of tokens."""
        value = self._get(name)
        if type(value) is not int or not least <= value <= MOST_TOKENS:
            raise self.wrong(f"{name}={shown(value)}: must be an integer from {least} to {MOST_TOKENS:,}")
        return value

    def number(self, name: str) -> float:
        """A number from 0 to 1e18."""
        value = self._get(name)
        if type(value) not in (int, float) or not 0 <= value <= _MOST:
            raise self.wrong(f"{name}={shown(value)}: must be a number from 0 to {_MOST:g}")
        return float(value)

    def integers(self, name: str) -> list[int]:
        """A list of whole numbers, none negative."""
        value = self._get(name)
        if not isinstance(value, list) or any(type(v) is not int or v < 0 for v in value):
            raise self.wrong(f"{name}={shown(value)}: must be a list of integers, none negative")
        return value

    def text_or_none(self, name: str) -> None:
        """Check that it is a text if it is there, and not null."""
        value = self._values.get(name)
        if not (value is None or isinstance(value, str)):
            raise self.wrong(f"{name}={shown(value)}: must be a text")

    def encodable(self, name: str) -> None:
        """Check its texts: JSON can write half a character, such as ``"\\ud800"``, which nobody can send."""
        value = self._get(name)
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise self.wrong(
                f"{name}={shown(value)}: holds half a character (a lone surrogate): {error.reason}"
            ) from None

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise self.wrong(f"has no {name!r}")
        return self._values[name]
