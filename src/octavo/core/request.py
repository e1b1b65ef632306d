"""A request as the engine sees it, and what the user gets back."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from octavo.core.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]

RankedToken = tuple[int, float, int]  # token id, natural log of its probability, rank from 1
TokenLogprobs = tuple[RankedToken, ...]  # of one position: the token that stands there, then the likeliest


class Turn(NamedTuple):
    """Whose turn it is: lower comes first.

    Attributes:
        when: what the queue's policy made of arrival and priority.
        request_id: of the request, or of the one that this is a sample or a beam of.
        part: number among those.
    """

    when: int
    request_id: int
    part: int = 0


_FIRST_TURN: Final = Turn(0, 0)


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way through the engine; owns its tokens.

    ``token_ids`` holds prompt and generated tokens. ``num_computed`` of them have their KV in the cache;
    a request is nothing but computed tokens catching up with known tokens.

    Attributes:
        max_len: tokens of prompt and output together at which it ends with reason "length".
        seed, sample_index: of the sampler's random numbers.
        stop_ids: tokens that end it with reason "stop": the model's own unless ignored, and the caller's.
        salt: separates what tenants may share of the cache.
        priority: lower is more urgent, where the queue looks at it.
        turn: its place among all requests, fixed when it is queued.
        forks: sequences that begin as soon as this one's known tokens are computed: the other samples of its
            prompt, as its copies; or beams that were preempted with it.
        beam_width: 0, or how many beams its search may have at once, this one among them.
        num_candidates: 0, or how many likely tokens a beam wants to see instead of one that is chosen.
        candidates: those tokens with their log-probabilities, when they have come and no token was taken yet.
        grammar: what allows its tokens, or None.
        logprobs: one entry per generated token if ``params.num_logprobs`` is set, else empty.
        prompt_logprobs: one entry per prompt token but the first if ``params.prompt_logprobs`` is set.
        num_cached_tokens: prompt tokens found in the cache when it was first admitted.
        num_preemptions: times it had to let its blocks go for another request.
        num_drafts, num_drafts_accepted: tokens guessed ahead, and those of them that were right.
        error: why it failed, when ``finish_reason`` is "error".
    """

    request_id: int
    token_ids: list[int]
    prompt_len: int
    params: SamplingParams
    max_len: int
    seed: int
    sample_index: int = 0
    stop_ids: frozenset[int] = frozenset()
    salt: str = ""
    priority: int = 0
    turn: Turn = field(default=_FIRST_TURN)
    forks: "list[Request]" = field(default_factory=list)
    beam_width: int = 0
    num_candidates: int = 0
    candidates: list[tuple[int, float]] | None = None
    grammar: Any = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_computed: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_drafts_accepted: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.prompt_len

    @property
    def is_scored(self) -> bool:
        """Whether it is wanted how likely each token of the prompt is, and not all of that is known."""
        wanted = self.params.prompt_logprobs is not None
        return wanted and len(self.prompt_logprobs) < self.prompt_len - 1


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
class Logprob:
    """How likely a token was at one position, by the model's raw logits.

    Attributes:
        logprob: natural logarithm of its probability, before temperature, penalties, bans and filters.
        rank: its place among all tokens, 1 for the most likely; equals by rising id.
        decoded_token: its bytes as text, U+FFFD for what is no whole character.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One generated continuation.

    ``token_ids`` holds all that was generated, the token that ended it included; ``text`` stops before it,
    unless the request has ``include_stop_str_in_output``.

    Attributes:
        logprobs: by token id, for each of ``token_ids``: that token first, then the likeliest ones; None if
            they were not asked for.
        cumulative_logprob: sum over the generated tokens, or None like ``logprobs``.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Everything a request gave: its prompt, its continuations, how much of it was cached, when.

    ``error`` says what went wrong if a continuation's ``finish_reason`` is "error"; otherwise it is None.
    ``prompt_logprobs`` has an entry like ``CompletionOutput.logprobs`` for each prompt token, None for the
    first, which nothing predicts; it is None if it was not asked for.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int
    metrics: RequestMetrics
    finished: bool = True
    error: str | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
