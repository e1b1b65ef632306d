"""What a shell offers where an option's value is typed. Quick: a person waits for it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args

from octavo.core.errors import OctavoError


def one_of(names: Any) -> Callable[[str], list[str]]:
    """Completes one of the names of a ``Literal``."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in get_args(names) if name.startswith(incomplete)]

    return complete


def complete_model(incomplete: str) -> list[str | tuple[str, str]]:
    """Short names, and models on this machine. A path is left to the shell, which knows files."""
    from octavo.weights.sources import list_cached, short_names

    found: dict[str, str] = dict(short_names())
    with suppress(OSError, OctavoError):  # a cache that cannot be read is no reason to complete nothing
        found |= {model.name: str(model.path) for model in list_cached() if model.name not in found}
    return [(name, text) for name, text in found.items() if name.startswith(incomplete)]
