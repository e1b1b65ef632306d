"""What the scheduler needs of whoever guesses tokens ahead."""

from typing import Protocol

from octavo.core.request import Request


class Drafter(Protocol):
    """Guesses. They change how fast tokens come, never which."""

    def propose(self, request: Request, most: int) -> list[int]:
        """Up to ``most`` tokens that may follow all that the request knows; ``most`` is at least 1."""
        ...

    def learn(self, request: Request, num_drafts: int, num_right: int) -> None:
        """Of the guesses made last, the first ``num_right`` were right."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended."""
        ...
