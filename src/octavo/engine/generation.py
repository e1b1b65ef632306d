"""A submitted request, for whoever waits for it: one or several continuations of a prompt."""

from collections.abc import Callable, Sequence

from octavo.core.request import Request, RequestMetrics, RequestOutput
from octavo.engine.choice import Choice


class Generation:
    """Several choices begin as forks of the first one, which computes the prompt for all.

    Attributes:
        choices: one for each sample.
        on_change: called by the engine's thread when there are new tokens or the end has come, or None.
    """

    def __init__(self, choices: Sequence[Choice], *, prompt: str | None, arrival_s: float) -> None:
        self.choices = list(choices)
        self.on_change: Callable[[], None] | None = None
        self._prompt = prompt
        self._arrival_s = arrival_s
        self._first_token_s: float | None = None
        self._finished_s = arrival_s

    @property
    def request(self) -> Request:
        """The first choice's sequence."""
        return self.choices[0].request

    @property
    def text(self) -> str:
        """The first choice's output so far, without anything a stop text may still cut away."""
        return self.choices[0].text

    @property
    def finished(self) -> bool:
        """Whether the output is complete."""
        return all(choice.finished for choice in self.choices)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far, by all choices."""
        return sum(choice.request.num_output_tokens for choice in self.choices)

    def advance(self, choice: Choice, now_s: float) -> bool:
        """Take in a choice's new tokens. Returns whether its text reached a stop text."""
        if self._first_token_s is None and choice.request.num_output_tokens:
            self._first_token_s = now_s
        return choice.advance()

    def finish(self, choice: Choice, now_s: float) -> None:
        """Complete a choice's output; its request has a finish reason."""
        self._finished_s = now_s
        choice.finish()

    def take_text(self) -> str:
        """The first choice's text that has come since the last call."""
        return self.choices[0].take_text()

    def output(self) -> RequestOutput:
        """The result.

        Raises:
            RuntimeError: a choice is not finished.
        """
        request, params = self.request, self.request.params
        best = self.choices
        if params.num_samples > params.n:  # of equally likely ones the first
            best = sorted(best, key=lambda choice: -choice.mean_logprob)[: params.n]
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            described = self.choices[0].described
            prompt_logprobs = [None, *(described(entry) for entry in request.prompt_logprobs)]
        errors = [c.request.error for c in self.choices if c.request.error is not None]
        return RequestOutput(
            request_id=request.request_id,
            prompt=self._prompt,
            prompt_token_ids=request.token_ids[: request.prompt_len],
            outputs=[choice.output(index) for index, choice in enumerate(best)],
            num_cached_tokens=request.num_cached_tokens,
            metrics=RequestMetrics(
                self._arrival_s,
                self._first_token_s,
                self._finished_s,
                sum(choice.request.num_preemptions for choice in self.choices),
            ),
            error=errors[0] if errors else None,
            prompt_logprobs=prompt_logprobs,
        )
