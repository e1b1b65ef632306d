"""How long prompts and outputs are: distributions of token counts, as people write them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from octavo.bench.workloads.item import MOST_TOKENS
from octavo.bench.workloads.lines import numbered_lines
from octavo.core.errors import InvalidConfig, InvalidRequest, shown

_MOST_DIGITS: Final = 20  # far beyond any count; Python itself refuses to read thousands
_HELP = "write 128, uniform:64,256, lognormal:200,0.8 (median, sigma) or empirical:FILE (a number per line)"


class Lengths(Protocol):
    """A distribution of lengths, each at least 1."""

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """``count`` lengths."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    value: int

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """``count`` times the value."""
        return [self.value] * count

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any from ``low`` to ``high``, both included."""

    low: int
    high: int

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """``count`` lengths."""
        return [int(n) for n in rng.integers(self.low, self.high + 1, count)]

    def __str__(self) -> str:
        return f"uniform:{self.low},{self.high}"


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Many short ones and a long tail, as people write: the logarithm is normal around that of the median."""

    median: float
    sigma: float

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """``count`` lengths, rounded."""
        values = np.exp(rng.normal(math.log(self.median), self.sigma, count))
        return [int(n) for n in np.clip(np.rint(values), 1, MOST_TOKENS)]

    def __str__(self) -> str:
        return f"lognormal:{self.median:g},{self.sigma:g}"


@dataclass(frozen=True, slots=True)
class Empirical:
    """Drawn from lengths that were seen somewhere, each as likely as it is frequent among them."""

    values: tuple[int, ...]

    def sample(self, rng: np.random.Generator, count: int) -> list[int]:
        """``count`` lengths, with replacement."""
        return [self.values[i] for i in rng.integers(0, len(self.values), count)]

    def __str__(self) -> str:
        return f"empirical: {len(self.values)} lengths, {sum(self.values) / len(self.values):.0f} on average"


def parse_lengths(name: str, text: str) -> Lengths:
    """The distribution of ``"128"``, ``"uniform:64,256"``, ``"lognormal:200,0.8"`` or ``"empirical:FILE"``.

    Args:
        name: of the option, for messages.

    Raises:
        InvalidConfig: it is none of these, or the file has a line that is no length (it is named).
    """
    kind, _, arguments = text.strip().partition(":")
    if kind.isdecimal() and not arguments:
        return Fixed(_length(name, kind))
    if kind == "empirical" and arguments:
        return Empirical(_read(name, Path(arguments)))
    parts = arguments.split(",")
    if kind == "uniform" and len(parts) == 2:
        low, high = (_length(name, part) for part in parts)
        if low > high:
            raise InvalidConfig(f"{name}={text!r}: the first must not be more than the second")
        return Uniform(low, high)
    if kind == "lognormal" and len(parts) == 2:
        try:
            median, sigma = map(float, parts)
        except ValueError:
            raise InvalidConfig(f"{name}={text!r}: {_HELP}") from None
        if not (1 <= median <= MOST_TOKENS and 0 <= sigma <= 10):
            raise InvalidConfig(f"{name}={text!r}: the median must be 1 to {MOST_TOKENS:,}, sigma 0 to 10")
        return Lognormal(median, sigma)
    raise InvalidConfig(f"{name}={shown(text)}: {_HELP}")


def count_of(text: str) -> int | None:
    """A number from 0 in digits; None if it is none, or beyond all that is counted here."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _length(where: str, text: str) -> int:
    text = text.strip()
    found = count_of(text)
    if found is None or not 1 <= found <= MOST_TOKENS:
        raise InvalidConfig(
            f"{where}: {shown(text)} is no length; it must be an integer from 1 to {MOST_TOKENS:,}"
        )
    return found


def _read(name: str, file: Path) -> tuple[int, ...]:
    try:
        lines = list(numbered_lines(file))
    except InvalidRequest as error:
        raise InvalidConfig(f"{name}: {error}") from error
    found = tuple(_length(f"{file}:{number}", line) for number, line in lines)
    if not found:
        raise InvalidConfig(f"{name}: {file} has no lengths")
    return found
