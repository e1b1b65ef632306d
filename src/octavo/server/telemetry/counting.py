"""Counts what the engine does, request by request and token by token.

Tokens are counted when they are certain: a stop text takes tokens away before they are counted, a draft
counts when it was right. So the sums are those that clients make of the answers they get.

The engine's thread counts under a lock of its own, for microseconds; a scrape holds it while it copies the
numbers, so that they belong together. Neither waits for a step.
"""

import threading
import time
from collections.abc import Mapping

from octavo.core.request import Request
from octavo.engine.beam_generation import BeamGeneration
from octavo.engine.generation import Generation
from octavo.engine.observing import StepReport
from octavo.server.telemetry.families import (
    FIRST_TOKENS_S,
    NUM_CHOICES,
    REASONS,
    REQUESTS_S,
    STEP_TOKENS,
    STEPS_S,
    TOKEN_GAPS_S,
    Histogram,
    token_counts,
)


class _Choice:
    """One sequence of a request: how many of its tokens are counted, and when the last came."""

    __slots__ = ("first_s", "last_s", "num_drafts", "request", "seen", "served")

    def __init__(self, request: Request, served: "_Served") -> None:
        self.request = request
        self.served = served
        self.seen = len(request.token_ids)
        self.first_s: float | None = None
        self.last_s = 0.0
        self.num_drafts = 0


class _Served:
    """One request."""

    __slots__ = ("choices", "generation", "has_first", "is_search", "scheduled_s")

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.is_search = isinstance(generation, BeamGeneration)
        self.scheduled_s: float | None = None
        self.has_first = False
        self.choices = [_Choice(request, self) for request in generation.requests]


class EngineCounts:
    """An observer that counts.

    Args:
        context_len: longest sequence, for the buckets of token counts.

    Attributes:
        histograms: by name of the family.
        finish_reasons: choices that have ended.
    """

    def __init__(self, context_len: int) -> None:
        sizes = token_counts(context_len)
        self.histograms = {
            "time_to_first_token_seconds": Histogram(FIRST_TOKENS_S),
            "inter_token_latency_seconds": Histogram(TOKEN_GAPS_S),
            "request_time_per_output_token_seconds": Histogram(TOKEN_GAPS_S),
            "e2e_request_latency_seconds": Histogram(REQUESTS_S),
            "request_queue_time_seconds": Histogram(REQUESTS_S),
            "request_prefill_time_seconds": Histogram(REQUESTS_S),
            "request_decode_time_seconds": Histogram(REQUESTS_S),
            "request_inference_time_seconds": Histogram(REQUESTS_S),
            "request_prompt_tokens": Histogram(sizes),
            "request_generation_tokens": Histogram(sizes),
            "request_params_n": Histogram(NUM_CHOICES),
            "request_params_max_tokens": Histogram(sizes),
            "iteration_tokens_total": Histogram(STEP_TOKENS),
            "step_seconds": Histogram(STEPS_S),
        }
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.num_proposals = 0
        self.finish_reasons = dict.fromkeys(REASONS, 0)
        self._gaps = self.histograms["inter_token_latency_seconds"]
        self._live: dict[Request, _Choice] = {}
        self._served: dict[Generation, _Served] = {}
        self._ended: list[_Served] = []  # in the step that they began in, of which the report is to come
        self._before_s = -1.0
        self._lock = threading.Lock()

    # In the engine's thread

    def arrived(self, generation: Generation) -> None:
        """A request was queued."""
        served = _Served(generation)
        with self._lock:
            self._served[generation] = served
            for choice in served.choices:
                self._live[choice.request] = choice

    def stepped(self, report: StepReport) -> None:
        """A step is done."""
        now_s = report.finished_s
        with self._lock:
            for request in report.admitted:
                self._begin(request, report.started_s)
            if self._ended:
                self._settle_ended()
            live, before_s = self._live, self._before_s
            usual = 0
            for request in report.advanced:
                choice = live.get(request)
                if choice is None:
                    continue
                # By far the most are those that got one token in each of the last two steps.
                if (
                    choice.last_s == before_s
                    and len(request.token_ids) - choice.seen == 1
                    and not report.num_drafts
                ):
                    choice.seen += 1
                    choice.last_s = now_s
                    usual += 1
                else:
                    self._take(choice, now_s)
            if usual:
                self.generation_tokens += usual
                self._gaps.observe(now_s - before_s, usual)
            self._before_s = now_s
            self.histograms["iteration_tokens_total"].observe(report.num_tokens)
            self.histograms["step_seconds"].observe(now_s - report.started_s)

    def finished(self, generation: Generation) -> None:
        """A request's output is complete."""
        with self._lock:
            served = self._served.pop(generation, None)
            if served is None:
                return
            if served.scheduled_s is None and any(choice.request.num_computed for choice in served.choices):
                self._ended.append(served)
            else:
                self._settle(served)

    # In any thread

    def copy(self) -> tuple[Mapping[str, Histogram], Mapping[str, int], Mapping[str, int]]:
        """Histograms, counters, and ends by reason, of one moment."""
        with self._lock:
            if self._ended and time.monotonic() - (self._ended[0].generation.finished_s or 0.0) > 1.0:
                self._settle_ended()  # the step broke: there is no report
            counters = {
                "prompt_tokens": self.prompt_tokens,
                "generation_tokens": self.generation_tokens,
                "spec_decode_num_drafts": self.num_proposals,
            }
            histograms = {name: histogram.copy() for name, histogram in self.histograms.items()}
            return histograms, counters, self.finish_reasons.copy()

    # Under the lock

    def _begin(self, request: Request, started_s: float) -> None:
        choice = self._live.get(request)
        if choice is not None and choice.served.scheduled_s is None:
            choice.served.scheduled_s = started_s
            self.prompt_tokens += request.prompt_len

    def _take(self, choice: _Choice, now_s: float) -> None:
        """Count a sequence's new tokens."""
        request, served = choice.request, choice.served
        if request.num_drafts != choice.num_drafts:
            choice.num_drafts = request.num_drafts
            self.num_proposals += 1
        if not served.has_first and (first_s := served.generation.first_token_s) is not None:
            served.has_first = True
            waited_s = first_s - served.generation.arrival_s
            self.histograms["time_to_first_token_seconds"].observe(waited_s)
        count = len(request.token_ids) - choice.seen
        if count <= 0 or served.is_search:
            return
        choice.seen += count
        self.generation_tokens += count
        if choice.first_s is None:
            choice.first_s = now_s
            if count > 1:
                self._gaps.observe(0.0, count - 1)
        else:
            self._gaps.observe((now_s - choice.last_s) / count, count)
        choice.last_s = now_s

    def _settle_ended(self) -> None:
        for served in self._ended:
            self._settle(served)
        self._ended.clear()

    def _settle(self, served: _Served) -> None:
        """A request is over."""
        generation, histograms = served.generation, self.histograms
        arrival_s, first_s = generation.arrival_s, generation.first_token_s
        end_s = arrival_s if generation.finished_s is None else generation.finished_s
        for choice in served.choices:
            self._take(choice, end_s)
            del self._live[choice.request]
        requests = [choice.request for choice in generation.choices]
        num_generated = sum(request.num_output_tokens for request in requests)
        last_s = end_s
        if served.is_search:
            self.generation_tokens += num_generated
        else:
            last_s = max(choice.last_s for choice in served.choices)
            for choice in served.choices:
                if choice.first_s is not None and (later := choice.request.num_output_tokens - 1) > 0:
                    mean_s = (choice.last_s - choice.first_s) / later
                    histograms["request_time_per_output_token_seconds"].observe(mean_s)
        for request in requests:
            self.finish_reasons[request.finish_reason or "abort"] += 1
        params, began_s = generation.request.params, served.scheduled_s
        histograms["e2e_request_latency_seconds"].observe(end_s - arrival_s)
        queued_until_s = end_s if began_s is None else began_s
        histograms["request_queue_time_seconds"].observe(max(0.0, queued_until_s - arrival_s))
        if first_s is not None and began_s is not None:
            histograms["request_prefill_time_seconds"].observe(first_s - began_s)
            histograms["request_decode_time_seconds"].observe(last_s - first_s)
            histograms["request_inference_time_seconds"].observe(last_s - began_s)
        histograms["request_prompt_tokens"].observe(generation.request.prompt_len)
        histograms["request_generation_tokens"].observe(num_generated)
        histograms["request_params_n"].observe(params.n)
        if params.max_tokens is not None:
            histograms["request_params_max_tokens"].observe(params.max_tokens)
