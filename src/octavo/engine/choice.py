"""One sequence's output as it grows: tokens to text, stop texts."""

from typing import Protocol

from octavo.core.request import CompletionOutput, Request
from octavo.engine.stopping import StopChecker


class Detokenizer(Protocol):
    """Turns one sequence's tokens into text, never giving out half a character."""

    def push(self, token_id: int) -> str:
        """The text that is certain once this token has come."""
        ...


class Choice:
    """One of the continuations that a generation gives.

    Attributes:
        text: output so far, without anything a stop text may still cut away.
        finished: whether the output is complete.
    """

    def __init__(self, index: int, request: Request, detokenizer: Detokenizer) -> None:
        self.index = index
        self.request = request
        self.text = ""
        self.finished = False
        self._detokenizer = detokenizer
        self._stops = StopChecker(tuple(request.params.stop or ()))
        self._num_seen = len(request.token_ids)
        self._num_taken = 0

    def advance(self) -> bool:
        """Take in the request's new tokens. Returns whether its text reached a stop text.

        Tokens behind the one that completed it are taken away again: had they not come together, they would
        not have come at all.
        """
        request = self.request
        # The token that stopped it is not text.
        end = len(request.token_ids) - (request.finish_reason == "stop")
        while self._num_seen < end:
            token_id = request.token_ids[self._num_seen]
            self._num_seen += 1
            self.text += self._stops.push(self._detokenizer.push(token_id))
            if self._stops.stopped:
                del request.token_ids[self._num_seen :]
                del request.logprobs[self._num_seen - request.prompt_len :]
                return True
        return False

    def finish(self) -> None:
        """Complete the output; the request has its finish reason.

        Bytes of a character that never became whole stay out of the text; ``token_ids`` has their tokens.
        """
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

    def output(self) -> CompletionOutput:
        """The result.

        Raises:
            RuntimeError: the sequence is not finished.
        """
        request = self.request
        if request.finish_reason is None:
            raise RuntimeError(f"request {request.request_id} is not finished")
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=request.token_ids[request.prompt_len :],
            finish_reason=request.finish_reason,
        )
