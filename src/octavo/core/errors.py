"""Every error a user can meet. Messages name the offending value, the limit, and what to do."""

from typing import Final

_MOST_SHOWN: Final = 100


def shown(value: object) -> str:
    """A value from outside as a message shows it: its repr, cut if it is long, and never an error itself."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, or an object that cannot describe itself
        return f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


class OctavoError(Exception):
    """Base of all errors that Octavo raises on purpose."""


class InvalidRequest(OctavoError, ValueError):
    """A request that can never be served as it stands: bad prompt, bad parameter, too long.

    Attributes:
        param: name of the offending parameter, or None.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(OctavoError):
    """Too many requests wait already; this one was not taken. It may be sent again later.

    Attributes:
        limit: sequences that may wait.
    """

    def __init__(self, message: str, *, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class InvalidConfig(OctavoError, ValueError):
    """An engine setting that is out of range, contradicts another, or does not fit this machine."""


class RequestFailed(OctavoError):
    """A request that was running could not go on.

    Attributes:
        reason: what its output has as ``error``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the request failed: {reason}")
        self.reason = reason


class NotYetSupported(InvalidConfig):
    """A documented option whose implementation has not arrived; refused by name, never ignored."""


class ModelNotFound(OctavoError):
    """The model's name or path leads nowhere, or its download failed."""


class CorruptModel(OctavoError):
    """A model file that is truncated, malformed, or fails its checksum."""


class UnsupportedModel(OctavoError):
    """A well-formed model that Octavo cannot run: architecture, tensor type or tokenizer unknown."""


class OutOfBlocks(OctavoError):
    """The KV block pool cannot supply what a step needs.

    Attributes:
        needed: blocks asked for.
        free: blocks that hold nothing.
        evictable: blocks that nobody holds but whose contents are still cached.
    """

    def __init__(self, *, needed: int, free: int, evictable: int, hint: str = "") -> None:
        message = f"out of KV blocks: {needed} needed, {free} free, {evictable} evictable"
        super().__init__(f"{message}. {hint}" if hint else message)
        self.needed = needed
        self.free = free
        self.evictable = evictable


class EngineFailed(OctavoError):
    """A step broke in a way no single request can be blamed for; the engine takes no more work."""
