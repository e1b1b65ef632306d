"""A request as the engine sees it, and what the user gets back."""

from dataclasses import dataclass
from typing import Literal

from octavo.core.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way through the engine; owns its tokens.

    ``token_ids`` holds prompt and generated tokens. ``num_computed`` of them have their KV in the cache;
    a request is nothing but computed tokens catching up with known tokens.

    Attributes:
        max_len: tokens of prompt and output together at which it ends with reason "length".
        seed: of the sampler's random numbers.
        stop_ids: tokens that end it with reason "stop": the model's own unless ignored, and the caller's.
        num_cached_tokens: prompt tokens found in the cache when it was first admitted.
        num_preemptions: times it had to let its blocks go for an older request.
        error: why it failed, when ``finish_reason`` is "error".
    """

    request_id: int
    token_ids: list[int]
    prompt_len: int
    params: SamplingParams
    max_len: int
    seed: int
    stop_ids: frozenset[int] = frozenset()
    num_computed: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.prompt_len


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request; times in seconds on the monotonic clock."""

    arrival_s: float
    first_token_s: float | None
    finished_s: float
    num_preemptions: int = 0

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, or None if there was none."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated continuation.

    ``token_ids`` holds all that was generated, the token that ended it included; ``text`` stops before it.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Everything a request gave: its prompt, its continuations, how much of it was cached, when.

    ``error`` says what went wrong if a continuation's ``finish_reason`` is "error"; otherwise it is None.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    metrics: RequestMetrics
    finished: bool = True
    error: str | None = None
