"""Who guesses tokens ahead, for the scheduler to have several verified in one step."""

from typing import Protocol

from octavo.core.request import Request
from octavo.scheduling.ngram import NGramDraft


class Drafter(Protocol):
    """Guesses. They change how fast tokens come, never which."""

    def propose(self, request: Request, most: int) -> list[int]:
        """Up to ``most`` tokens that may follow all that the request knows; ``most`` is at least 1."""
        ...

    def forget(self, request: Request) -> None:
        """The request runs no longer."""
        ...


class NGramDrafter:
    """Prompt lookup for each request.

    Args:
        max_draft: tokens guessed at once at most.
    """

    def __init__(self, max_draft: int) -> None:
        self._max_draft = max_draft
        self._drafts: dict[Request, NGramDraft] = {}

    def propose(self, request: Request, most: int) -> list[int]:
        """See Drafter. Takes in the tokens that are new since the last time."""
        draft = self._drafts.get(request)
        if draft is None:
            draft = self._drafts[request] = NGramDraft(max_draft=self._max_draft)
            draft.extend(request.token_ids[: request.prompt_len], generated=False)
        draft.extend(request.token_ids[len(draft) :])
        return draft.propose(most)

    def forget(self, request: Request) -> None:
        """See Drafter."""
        self._drafts.pop(request, None)
