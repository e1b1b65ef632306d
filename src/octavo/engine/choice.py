"""One sequence's output as it grows: tokens to text, stop texts."""

import math
from typing import Protocol

from octavo.core.request import CompletionOutput, Logprob, Request, TokenLogprobs
from octavo.engine.stopping import StopChecker


class Detokenizer(Protocol):
    """Turns one sequence's tokens into text, never giving out half a character."""

    def push(self, token_id: int) -> str:
        """The text that is certain once this token has come."""
        ...

    def token_text(self, token_id: int) -> str:
        """One token's bytes as text, whatever comes before and after it."""
        ...


class Choice:
    """One of the continuations that a generation gives.

    Attributes:
        text: output so far, without anything a stop text may still cut away.
        finished: whether the output is complete.
    """

    def __init__(self, request: Request, detokenizer: Detokenizer) -> None:
        self.request = request
        self.text = ""
        self.finished = False
        self._detokenizer = detokenizer
        params = request.params
        self._stops = StopChecker(tuple(params.stop or ()), include_stop=params.include_stop_str_in_output)
        self._num_seen = len(request.token_ids)
        self._num_taken = 0
        self._num_visible = 0

    def advance(self) -> bool:
        """Take in the request's new tokens. Returns whether its text reached a stop text.

        Tokens behind the one that completed it are taken away again: had they not come together, they would
        not have come at all.
        """
        request, params = self.request, self.request.params
        # The token that stopped it is not text, unless that is asked for.
        is_stopped = request.finish_reason == "stop" and not params.include_stop_str_in_output
        end = len(request.token_ids) - is_stopped
        while self._num_seen < end:
            token_id = request.token_ids[self._num_seen]
            self._num_seen += 1
            text = self._detokenizer.push(token_id)
            if params.stop:
                is_early = self._num_seen - request.prompt_len < params.min_tokens
                text = self._stops.push(text, exempt=is_early)
            self.text += text
            if self._stops.stopped:
                del request.token_ids[self._num_seen :]
                del request.logprobs[self._num_seen - request.prompt_len :]
                break
        self._num_visible = request.num_output_tokens
        return self._stops.stopped

    def finish(self) -> None:
        """Complete the output; the request has its finish reason.

        Bytes of a character that never became whole stay out of the text; ``token_ids`` has their tokens.
        """
        self.text += self._stops.flush()
        if self._stops.stopped and self.request.finish_reason == "length":
            self.request.finish_reason = "stop"
        self.finished = True  # last: another thread may be waiting for it

    @property
    def num_tokens(self) -> int:
        """Output tokens that will stay; more may be known that a stop text takes away again."""
        return self._num_visible

    def take_text(self) -> str:
        """The text that has come since the last call."""
        text = self.text  # read once: another thread may be adding to it
        new = text[self._num_taken :]
        self._num_taken = len(text)
        return new

    @property
    def mean_logprob(self) -> float:
        """Log-probability of the output per token; what makes one choice of several the best."""
        entries = self.request.logprobs
        return sum(entry[0][1] for entry in entries) / max(1, len(entries))

    def output(self, index: int) -> CompletionOutput:
        """The result, as number ``index`` of those of its prompt.

        Raises:
            RuntimeError: the sequence is not finished.
        """
        request = self.request
        if request.finish_reason is None:
            raise RuntimeError(f"request {request.request_id} is not finished")
        logprobs = cumulative = None
        if request.params.logprobs is not None:
            logprobs = [self.described(entry) for entry in request.logprobs]
            cumulative = math.fsum(entry[0][1] for entry in request.logprobs)
        return CompletionOutput(
            index=index,
            text=self.text,
            token_ids=request.token_ids[request.prompt_len :],
            finish_reason=request.finish_reason,
            logprobs=logprobs,
            cumulative_logprob=cumulative,
        )

    def described(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        """One position's log-probabilities, with the tokens' texts."""
        text = self._detokenizer.token_text
        return {token_id: Logprob(logprob, rank, text(token_id)) for token_id, logprob, rank in entry}
