"""Octavo: a serving engine for large language models built on paged attention, for CPUs first.

The names here are imported when they are first used, so that ``octavo.paging`` alone costs next to nothing.
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.core.errors import OctavoError
    from octavo.core.request import CompletionOutput, RequestOutput
    from octavo.core.sampling import SamplingParams
    from octavo.core.structured import StructuredOutput
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.llm import LLM

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "OctavoError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutput",
]

_HOMES = {
    "LLM": "octavo.engine.llm",
    "AsyncEngine": "octavo.engine.async_engine",
    "CompletionOutput": "octavo.core.request",
    "RequestOutput": "octavo.core.request",
    "SamplingParams": "octavo.core.sampling",
    "StructuredOutput": "octavo.core.structured",
    "OctavoError": "octavo.core.errors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


@cache
def _version() -> str:
    from importlib import metadata  # takes as long as some commands do

    try:
        return metadata.version("octavo")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "0+source"
