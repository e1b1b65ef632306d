"""How a long fetch tells its caller where it is."""

from typing import Protocol


class Progress(Protocol):
    """Called a few times a second while a model is fetched, from any thread.

    Whatever it raises ends the fetch, which then removes what it had begun.
    """

    def __call__(self, label: str, done_bytes: int, total_bytes: int | None) -> None:
        """Report ``done_bytes`` of ``total_bytes`` (None while unknown) of the stage named ``label``."""


def ignore_progress(label: str, done_bytes: int, total_bytes: int | None) -> None:
    """The Progress of a caller who does not want to know."""
