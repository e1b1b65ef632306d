"""What is tried: settings that differ from those used now."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from octavo.bench.sweep.grid import AXIS, Axis

ALL: Final = "all"  # no limit of its own for prompts while others decode


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings of an engine, as its options have them.

    Attributes:
        block_size: tokens, or by layers such as "0-9=64,10-29=16".
        max_step_tokens: tokens.
        max_chunk_tokens: tokens, or "all".
    """

    block_size: int | str = 16
    max_step_tokens: int = 512
    max_chunk_tokens: int | str = ALL

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Candidate":
        """The other way.

        Raises:
            KeyError: a setting is missing.
        """
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def options(self) -> list[str]:
        """For the command line of a command that loads a model."""
        found: list[str] = []
        for axis in TUNED:
            value = getattr(self, axis.name)
            if value != ALL:
                found += [axis.option, str(value)]
        return found

    def __str__(self) -> str:
        parts = [axis.phrase.format(getattr(self, axis.name)) for axis in TUNED]
        return ", ".join(parts if self.max_chunk_tokens != ALL else parts[:-1])


TUNED: Final = (
    AXIS["block_size"],
    AXIS["max_step_tokens"],
    Axis(
        "max_chunk_tokens",
        "--max-chunk-tokens",
        "prompt tokens per step while others decode",
        "chunk",
        "chunks of {}",
    ),
)


def challengers(
    baseline: Candidate, values: Mapping[str, Sequence[int | str]]
) -> dict[str, tuple[Candidate, ...]]:
    """By axis, the candidates that differ from the baseline in that alone. Axes without any are left out.

    A chunk as large as the step is no limit, and not tried.
    """
    found = {}
    for axis in TUNED:
        each = dict.fromkeys(_with(baseline, {axis.name: value}) for value in values.get(axis.name, ()))
        tried = tuple(one for one in each if one != baseline and _is_of_use(one))
        if tried:
            found[axis.name] = tried
    return found


def combine(baseline: Candidate, parts: Mapping[str, Candidate]) -> Candidate:
    """All that the parts change, each its axis, at once."""
    found = _with(baseline, {name: getattr(part, name) for name, part in parts.items()})
    return found if _is_of_use(found) else replace(found, max_chunk_tokens=ALL)


def _with(baseline: Candidate, values: Mapping[str, int | str]) -> Candidate:
    return Candidate.from_dict({**baseline.as_dict(), **values})


def _is_of_use(one: Candidate) -> bool:
    return one.max_chunk_tokens == ALL or int(one.max_chunk_tokens) < one.max_step_tokens
