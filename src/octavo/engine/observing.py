"""What the engine tells those who count and draw: requests that come and go, and every step."""

from typing import NamedTuple, Protocol

from octavo.core.request import Request
from octavo.engine.generation import Generation


class StepReport(NamedTuple):
    """One step as it was.

    Attributes:
        started_s, finished_s: on the monotonic clock.
        num_rows: sequences that were computed.
        num_tokens: tokens computed, of prompts and drafts too.
        num_prompt_tokens: of these, those known before: prompts, and what a preempted sequence repeats.
        num_drafts: of these, guesses.
        admitted: requests that got their first blocks.
        advanced: requests that got tokens, candidates or an error; their tokens are in them.
    """

    started_s: float
    finished_s: float
    num_rows: int
    num_tokens: int
    num_prompt_tokens: int
    num_drafts: int
    admitted: list[Request]
    advanced: list[Request]


class EngineObserver(Protocol):
    """Called by whoever changes requests, in the middle of it: it must be quick and change nothing.

    One that raises is not called again; no request suffers.
    """

    def arrived(self, generation: Generation) -> None:
        """A request was queued."""
        ...

    def stepped(self, report: StepReport) -> None:
        """A step is done; what it finished was told before."""
        ...

    def finished(self, generation: Generation) -> None:
        """A request's output is complete, well or not."""
        ...
