"""A recommendation as a file for ``--config``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.bench.tuning.candidates import ALL, TUNED
from octavo.core.display import printable


def as_toml(
    settings: Mapping[str, Any], candidate: Mapping[str, Any], told: Sequence[tuple[str, str]]
) -> str:
    """The file.

    Args:
        settings: other options to keep, by their long names, the model among them.
        candidate: settings to recommend (``Candidate.as_dict``).
        told: what was measured, for comments: names and texts.
    """
    lines = [f"# {name}: {printable(text)}" for name, text in told]
    lines += ["", *(f"{name} = {_value(value)}" for name, value in settings.items())]
    for axis in TUNED:
        if candidate[axis.name] != ALL:
            lines.append(f"{axis.option[2:]} = {_value(candidate[axis.name])}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """As JSON has it, but for one character of texts that TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
