"""What the engine did since one last asked: steps, tokens, first tokens, requests that came and went.

The methods of ``EngineObserver`` run in the engine's thread, all others in the event loop. What they share is
appended to at one end and read from a copy, or a number that only grows; neither needs a lock.
"""

import statistics
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from octavo.engine.block_map import RequestFigures
from octavo.engine.generation import Generation
from octavo.engine.observing import StepReport

Item = TypeVar("Item")

MAX_STEPS: Final = 8192
MAX_STEPS_TOLD: Final = 64
MAX_FINISHED: Final = 4096


class StepRecord(NamedTuple):
    """One step, or several in a row: ``num_rows`` is then their mean, all else their sum."""

    finished_s: float
    duration_s: float
    num_rows: int
    num_prompt_tokens: int
    num_decode_tokens: int
    num_drafts: int


class FinishedRequest(NamedTuple):
    """What is left of a request."""

    figures: RequestFigures
    arrival_s: float
    finished_s: float


class Activity:
    """An observer that keeps the latest.

    Attributes:
        num_events: steps, arrivals and ends so far; while it stays the same, so does the memory.
        num_output_tokens, num_prompt_tokens: computed so far; drafts that were right are not in the former.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self.num_output_tokens = 0
        self.num_prompt_tokens = 0
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=MAX_STEPS)  # when, after how long
        self._arrivals: dict[int, float] = {}
        self._unanswered: dict[int, Generation] = {}
        self._finished: OrderedDict[int, FinishedRequest] = OrderedDict()

    # In the engine's thread

    def arrived(self, generation: Generation) -> None:
        """A request was queued."""
        self.num_events += 1
        request_id = generation.request.request_id
        self._arrivals[request_id] = generation.arrival_s
        self._unanswered[request_id] = generation

    def stepped(self, report: StepReport) -> None:
        """A step is done."""
        num_drafts, num_prompt_tokens = report.num_drafts, report.num_prompt_tokens
        self._steps.append(
            StepRecord(
                report.finished_s,
                report.finished_s - report.started_s,
                report.num_rows,
                num_prompt_tokens,
                report.num_tokens - num_prompt_tokens - num_drafts,
                num_drafts,
            )
        )
        self.num_output_tokens += len(report.advanced)
        self.num_prompt_tokens += num_prompt_tokens
        if self._unanswered:
            for request in report.advanced:
                generation = self._unanswered.pop(request.turn.request_id, None)
                if generation is not None and generation.first_token_s is not None:
                    taken_s = generation.first_token_s - generation.arrival_s
                    self._first_tokens.append((report.finished_s, taken_s))
        self.num_events += 1  # last: who sees it finds the rest

    def finished(self, generation: Generation) -> None:
        """A request's output is complete."""
        first = generation.request.request_id
        self._arrivals.pop(first, None)
        unanswered = self._unanswered.pop(first, None)
        at_s, first_token_s = generation.finished_s, generation.first_token_s
        if at_s is None:
            at_s = generation.arrival_s
        if unanswered is not None and first_token_s is not None:  # it came in the step that ended it
            self._first_tokens.append((first_token_s, first_token_s - generation.arrival_s))
        for request in (generation.request, *generation.requests):
            figures = RequestFigures.of(request, "finished")
            self._finished[request.request_id] = FinishedRequest(figures, generation.arrival_s, at_s)
        while len(self._finished) > MAX_FINISHED:
            self._finished.popitem(last=False)
        self.num_events += 1

    # In the event loop

    def arrival_of(self, leader: int) -> float | None:
        """When a request came, on the monotonic clock; None if it is over, or came before this observer."""
        return self._arrivals.get(leader)

    def finished_request(self, request_id: int) -> FinishedRequest | None:
        """One of the latest that are over."""
        return self._finished.get(request_id)

    def steps(self, after_s: float, until_s: float) -> list[StepRecord]:
        """Steps that ended in this time, oldest first; at most MAX_STEPS_TOLD, longer runs are merged."""
        found = []
        for step in reversed(_copied(self._steps)):
            if step.finished_s <= after_s:
                break
            if step.finished_s <= until_s:
                found.append(step)
        found.reverse()
        return merged(found)

    def median_ttft_s(self, after_s: float, until_s: float) -> float | None:
        """Of the first tokens that came in this time: seconds since their requests arrived."""
        times = [taken_s for at_s, taken_s in _copied(self._first_tokens) if after_s < at_s <= until_s]
        return statistics.median(times) if times else None


def _copied(source: "deque[Item]") -> "list[Item]":
    """What is in a deque to which another thread appends."""
    while True:
        try:
            return list(source)
        except RuntimeError:  # it grew meanwhile
            continue


def merged(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """As they are, or runs of equal length as one."""
    size = -(-len(steps) // MAX_STEPS_TOLD)
    if size <= 1:
        return list(steps)
    runs = [steps[i : i + size] for i in range(0, len(steps), size)]
    return [
        StepRecord(
            run[-1].finished_s,
            sum(step.duration_s for step in run),
            round(statistics.fmean(step.num_rows for step in run)),
            sum(step.num_prompt_tokens for step in run),
            sum(step.num_decode_tokens for step in run),
            sum(step.num_drafts for step in run),
        )
        for run in runs
    ]
