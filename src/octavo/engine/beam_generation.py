"""A submitted request that searches by beams: several sequences at once, of which the best come out."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from octavo.core.request import CompletionOutput, FinishReason, Request
from octavo.engine.beam import BeamSearch, BeamStep
from octavo.engine.choice import Choice
from octavo.engine.generation import Generation


class BeamGeneration(Generation):
    """Its beams are sequences like any others; only what follows each of them is decided for all together.

    The choices are made in the end. There is no text before.

    Attributes:
        beams: the live ones, the best first.
    """

    def __init__(
        self,
        first: Request,
        search: BeamSearch,
        make_choice: Callable[[Request], Choice],
        *,
        prompt: str | None,
        arrival_s: float,
    ) -> None:
        super().__init__([make_choice(first)], prompt=prompt, arrival_s=arrival_s)
        self.beams = [first]
        self._first = first
        self._search = search
        self._make_choice = make_choice
        self._is_done = False
        self._blank = self.choices[0]
        self._cumulative_logprobs: list[float] = []

    @property
    def request(self) -> Request:
        """The sequence that the search began with."""
        return self._first

    @property
    def requests(self) -> list[Request]:
        """The live beams."""
        return self.beams

    @property
    def finished(self) -> bool:
        """Whether the output is complete."""
        return self._is_done

    @property
    def num_preemptions(self) -> int:
        """How often the search had to let its blocks go; its beams do so together, and pass the count on."""
        return max(beam.num_preemptions for beam in (self._first, *self.beams))

    @property
    def is_ready(self) -> bool:
        """Whether the candidates of all live beams have come."""
        return all(beam.candidates is not None for beam in self.beams)

    def advance_search(self, now_s: float) -> BeamStep:
        """Decide which beams go on; their candidates are used up."""
        if self.first_token_s is None:
            self.first_token_s = now_s
        candidates = [beam.candidates or [] for beam in self.beams]
        for beam in self.beams:
            beam.candidates = None
        token_ids = np.array([[token_id for token_id, _ in c] for c in candidates], np.int64)
        logprobs = np.array([[logprob for _, logprob in c] for c in candidates], np.float32)
        return self._search.advance(token_ids, logprobs)

    def finish_search(self, now_s: float) -> None:
        """Complete the output with what was found, or with the live beams if the search was broken off."""
        self.finished_s = now_s
        first, hypotheses = self._first, self._search.hypotheses[: self._first.params.n]
        reason = first.finish_reason
        found: list[tuple[list[int], FinishReason, float]]
        if hypotheses and reason not in ("abort", "error"):
            found = [(h.token_ids, h.finish_reason, h.cumulative_logprob) for h in hypotheses]
        else:
            reason = reason or "abort"
            found = [(b.token_ids[b.prompt_len :], reason, 0.0) for b in self.beams[: first.params.n]]
        self.choices = []
        prompt = first.token_ids[: first.prompt_len]
        for token_ids, finish_reason, _ in found:
            request = replace(first, token_ids=list(prompt), finish_reason=None)
            choice = self._make_choice(request)
            request.token_ids += token_ids
            request.finish_reason = finish_reason
            choice.advance()
            choice.finish()
            self.choices.append(choice)
        self._cumulative_logprobs = [logprob for _, _, logprob in found]
        self._is_done = True  # last: another thread may be waiting for it

    def give_up(self, now_s: float) -> None:
        """Complete the output without any text, which could not be made."""
        self.finished_s = now_s
        self.choices, self._cumulative_logprobs = [self._blank], [0.0]
        self._blank.finished = True
        self._is_done = True

    def end_unstarted(self, now_s: float) -> None:
        """Complete the output of a request that never began."""
        self._first.finish_reason = "abort"
        self.give_up(now_s)

    def _completions(self) -> list[CompletionOutput]:
        return [
            replace(choice.output(index), cumulative_logprob=logprob)
            for index, (choice, logprob) in enumerate(
                zip(self.choices, self._cumulative_logprobs, strict=True)
            )
        ]
