"""Typed reading of a model's own description: ``config.json`` or GGUF key/values.

Every complaint names the file's key and what was found there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from octavo.core.errors import CorruptModel, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping of unchecked values with checked getters; a missing key and ``None`` are the same.

    Attributes:
        values: what the file says.
        source: how to name the file in errors.
        prefix: put before every key that is looked up.
    """

    values: Mapping[str, object]
    source: str
    prefix: str = ""

    def get(self, key: str) -> object:
        """The value as it is, or None."""
        return self.values.get(self.prefix + key)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number of at least ``minimum``; required if there is no default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number")
        if value < minimum:
            raise self.wrong(key, f"at least {minimum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; required if there is no default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "a number")
        if not math.isfinite(value):
            raise self.wrong(key, "finite")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above zero; required if there is no default."""
        value = self.number(key, default)
        if value <= 0:
            raise self.wrong(key, "above zero")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text; required if there is no default."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """One whole number, a list of them, or nothing."""
        value = self.get(key)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in found):
            raise self.wrong(key, "a whole number or a list of them")
        return tuple(found)

    def section(self, key: str) -> "Fields":
        """A nested mapping, empty if it is missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Fields(value or {}, f"{self.source}, {self.prefix}{key}")

    def wrong(self, key: str, expected: str) -> CorruptModel:
        """The error for a value that is not what it must be."""
        return CorruptModel(f"{self.source}: {self.prefix}{key} is {self.get(key)!r}; it must be {expected}")

    def unsupported(self, key: str, hint: str = "") -> UnsupportedModel:
        """The error for a value that Octavo does not run; ``hint`` says what it does run, or what to do."""
        message = f"{self.source}: {self.prefix}{key} {self.get(key)!r} is not supported"
        return UnsupportedModel(f"{message}; {hint}" if hint else message)

    def _value(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise CorruptModel(f"{self.source}: {self.prefix}{key} is missing")
        return value
