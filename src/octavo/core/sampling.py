"""How the next token is chosen: the user's parameters, checked when they are made."""

import math
from dataclasses import dataclass

from octavo.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request.

    Attributes:
        max_tokens: tokens to generate at most, or None for as many as the context holds.
        temperature: 0 picks the most likely token; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this.
        min_p: drop tokens less likely than this fraction of the most likely one.
        seed: makes sampling repeatable whatever else runs; None draws a fresh seed.
        stop: texts that end generation; they are not part of the output.
        stop_token_ids: token ids that end generation, beside the model's own.
        ignore_eos: go on after the model's end-of-sequence tokens.

    Raises:
        InvalidRequest: a value out of range; names parameter, value and limit.
    """

    max_tokens: int | None = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            self._check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1")
        finite = math.isfinite(self.temperature) and self.temperature >= 0
        self._check("temperature", self.temperature, finite, "0 or more")
        self._check("top_k", self.top_k, self.top_k >= 0, "0 (off) or more")
        self._check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        self._check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        if self.seed is not None:
            self._check("seed", self.seed, 0 <= self.seed < 2**64, "from 0 to 2**64 - 1")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        self._check("stop", self.stop, all(isinstance(s, str) and s for s in stop), "non-empty texts")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))

    @staticmethod
    def _check(name: str, value: object, ok: bool, limit: str) -> None:
        if not ok:
            raise InvalidRequest(f"{name}={value!r}: must be {limit}", param=name)
