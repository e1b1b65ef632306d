"""One request's output as it grows: tokens to text, stop texts, times."""

import math
from typing import Protocol

from octavo.core.request import (
    CompletionOutput,
    Logprob,
    Request,
    RequestMetrics,
    RequestOutput,
    TokenLogprobs,
)
from octavo.engine.stopping import StopChecker


class Detokenizer(Protocol):
    """Turns one sequence's tokens into text, never giving out half a character."""

    def push(self, token_id: int) -> str:
        """The text that is certain once this token has come."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token's bytes as text, whatever comes before and after it."""
        ...


class Generation:
    """A submitted request, for whoever waits for it.

    Attributes:
        text: output so far, without anything a stop text may still cut away.
        finished: whether the output is complete.
    """

    def __init__(
        self, request: Request, detokenizer: Detokenizer, *, prompt: str | None, arrival_s: float
    ) -> None:
        self.request = request
        self.text = ""
        self.finished = False
        self._prompt = prompt
        self._detokenizer = detokenizer
        self._stops = StopChecker(
            tuple(request.params.stop or ()), include_stop=request.params.include_stop_str_in_output
        )
        self._num_taken = 0
        self._arrival_s = arrival_s
        self._first_token_s: float | None = None
        self._finished_s = arrival_s

    def advance(self, now_s: float) -> bool:
        """Take in the request's newest token, if it got one. Returns whether its text reached a stop text."""
        request = self.request
        if request.num_output_tokens and self._first_token_s is None:
            self._first_token_s = now_s
        params, reason = request.params, request.finish_reason
        # The token that stopped it is not text, unless that is asked for.
        if reason != "error" and (reason != "stop" or params.include_stop_str_in_output):
            self.text += self._stops.push(
                self._detokenizer.push(request.token_ids[-1]),
                exempt=request.num_output_tokens < params.min_tokens,
            )
        return self._stops.stopped

    def finish(self, now_s: float) -> None:
        """Complete the output; the request has its finish reason.

        Bytes of a character that never became whole stay out of the text; ``token_ids`` has their tokens.
        """
        self._finished_s = now_s
        self.text += self._stops.flush()
        if self._stops.stopped and self.request.finish_reason == "length":
            self.request.finish_reason = "stop"
        self.finished = True  # last: another thread may be waiting for it

    def take_text(self) -> str:
        """The text that has come since the last call."""
        text = self.text  # read once: another thread may be adding to it
        new = text[self._num_taken :]
        self._num_taken = len(text)
        return new

    def output(self) -> RequestOutput:
        """The result.

        Raises:
            RuntimeError: the request is not finished.
        """
        request = self.request
        if request.finish_reason is None:
            raise RuntimeError(f"request {request.request_id} is not finished")
        logprobs, cumulative, prompt_logprobs = None, None, None
        if request.params.logprobs is not None:
            logprobs = [self._logprobs(entry) for entry in request.logprobs]
            cumulative = math.fsum(entry[0][1] for entry in request.logprobs)
        if request.params.prompt_logprobs is not None:
            prompt_logprobs = [None, *(self._logprobs(entry) for entry in request.prompt_logprobs)]
        completion = CompletionOutput(
            index=0,
            text=self.text,
            token_ids=request.token_ids[request.prompt_len :],
            finish_reason=request.finish_reason,
            logprobs=logprobs,
            cumulative_logprob=cumulative,
        )
        return RequestOutput(
            request_id=request.request_id,
            prompt=self._prompt,
            prompt_token_ids=request.token_ids[: request.prompt_len],
            outputs=[completion],
            num_cached_tokens=request.num_cached_tokens,
            metrics=RequestMetrics(
                self._arrival_s, self._first_token_s, self._finished_s, request.num_preemptions
            ),
            error=request.error,
            prompt_logprobs=prompt_logprobs,
        )

    def _logprobs(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        text = self._detokenizer.token_text
        return {token_id: Logprob(logprob, rank, text(token_id)) for token_id, logprob, rank in entry}
