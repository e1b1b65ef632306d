"""A request as the engine sees it, and what the user gets back."""

from dataclasses import dataclass, field
from typing import Literal

from octavo.core.sampling import SamplingParams

FinishReason = Literal["stop", "length"]


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way through the engine; owns its tokens.

    ``token_ids`` holds prompt and generated tokens. ``num_computed`` of them have their KV in the cache;
    a request is nothing but computed tokens catching up with known tokens.
    """

    request_id: int
    token_ids: list[int]
    prompt_len: int
    params: SamplingParams
    max_len: int
    seed: int
    num_computed: int = 0
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.prompt_len


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request; times in seconds on the monotonic clock."""

    arrival_s: float
    first_token_s: float
    finished_s: float

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_token_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated continuation."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Everything a request gave: its prompt, its continuations, how much of it was cached, when."""

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    metrics: RequestMetrics
    finished: bool = field(default=True)
