"""A submitted request, for whoever waits for it: one or several continuations of a prompt."""

from collections.abc import Callable, Sequence

from octavo.core.request import CompletionOutput, Request, RequestMetrics, RequestOutput
from octavo.engine.choice import Choice


class Generation:
    """Several choices begin as forks of the first one, which computes the prompt for all.

    Attributes:
        choices: one for each sample.
        arrival_s, first_token_s, finished_s: when that was, on the monotonic clock; None until then.
        is_dropped: whether nobody waits for it any more.
        on_change: called by the engine's thread when there are new tokens (with False) or the end has come
            (with True), or None.
    """

    def __init__(self, choices: Sequence[Choice], *, prompt: str | None, arrival_s: float) -> None:
        self.choices = list(choices)
        self._choices = {choice.request: choice for choice in choices}
        self.on_change: Callable[[bool], None] | None = None
        self.is_dropped = False
        self._prompt = prompt
        self.arrival_s = arrival_s
        self.first_token_s: float | None = None
        self.finished_s: float | None = None

    @property
    def request(self) -> Request:
        """The first choice's sequence."""
        return self.choices[0].request

    @property
    def requests(self) -> list[Request]:
        """The sequences of all choices."""
        return [choice.request for choice in self.choices]

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

    @property
    def num_preemptions(self) -> int:
        """How often sequences of this request had to let their blocks go."""
        return sum(choice.request.num_preemptions for choice in self.choices)

    def choice_of(self, request: Request) -> Choice:
        """The choice that a sequence is for."""
        return self._choices[request]

    def advance(self, request: Request, now_s: float) -> bool:
        """Take in a sequence's new tokens. Returns whether its text reached a stop text."""
        if self.first_token_s is None and request.num_output_tokens:
            self.first_token_s = now_s
        return self._choices[request].advance()

    def finish(self, request: Request, now_s: float) -> None:
        """Complete the output of a sequence, which has a finish reason."""
        self.finished_s = now_s
        self._choices[request].finish()

    def notify(self, *, is_over: bool = False) -> None:
        """Tell whoever wants to know that there is something new."""
        if self.on_change is not None:
            try:
                self.on_change(is_over)
            except Exception:  # whoever listens is broken; no other request is to suffer
                self.on_change = None

    def end_unstarted(self, now_s: float) -> None:
        """Complete the output of a request that never began."""
        for request in self.requests:
            request.finish_reason = "abort"
            self.finish(request, now_s)

    def take_text(self) -> str:
        """The first choice's text that has come since the last call."""
        return self.choices[0].take_text()

    def output(self) -> RequestOutput:
        """The result.

        Raises:
            RuntimeError: a choice is not finished.
        """
        request, params = self.request, self.request.params
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            described = self.choices[0].described
            prompt_logprobs = [None, *(described(entry) for entry in request.prompt_logprobs)]
        errors = [r.error for r in (request, *(c.request for c in self.choices)) if r.error is not None]
        return RequestOutput(
            request_id=request.request_id,
            prompt=self._prompt,
            prompt_token_ids=request.token_ids[: request.prompt_len],
            outputs=self._completions(),
            num_cached_tokens=request.num_cached_tokens,
            metrics=RequestMetrics(
                self.arrival_s,
                self.first_token_s,
                self.arrival_s if self.finished_s is None else self.finished_s,
                self.num_preemptions,
            ),
            error=errors[0] if errors else None,
            prompt_logprobs=prompt_logprobs,
        )

    def _completions(self) -> list[CompletionOutput]:
        params, best = self.request.params, self.choices
        if params.num_samples > params.n:  # of equally likely ones the first
            ranked = sorted(best, key=lambda choice: (choice.request.error is not None, -choice.mean_logprob))
            best = ranked[: params.n]
        return [choice.output(index) for index, choice in enumerate(best)]
