"""How the next token is chosen: the user's parameters, checked when they are made."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Final

from octavo.core.errors import InvalidRequest, NotYetSupported, shown

# Beyond these a value no longer means anything else; rows keep it as int32 and float32.
MAX_TOP_K: Final = 2**31 - 1
MAX_TEMPERATURE: Final = 1e6

# Parameters that callers of similar engines pass, and the values that ask for nothing. Any other value is
# refused by name until the feature behind it exists.
_PLANNED: Final[dict[str, tuple[object, ...]]] = {
    "best_of": (None, 1),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": (None, {}),
    "bad_words": (None, [], ()),
    "allowed_token_ids": (None,),
    "logprobs": (None,),
    "prompt_logprobs": (None,),
    "guided_decoding": (None,),
    "structured_outputs": (None,),
    "use_beam_search": (False,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request.

    The filters apply in the order temperature, top_k, top_p, min_p.

    Attributes:
        max_tokens: tokens to generate at most, or None for as many as the context holds.
        temperature: 0 picks the most likely token; otherwise logits are divided by it. At most 1e6.
        top_k: keep the k most likely tokens; 0 (or -1) keeps all. At most 2**31 - 1.
        top_p: keep the smallest set of tokens whose probability reaches this.
        min_p: drop tokens less likely than this fraction of the most likely one.
        seed: makes sampling repeatable whatever else runs; None draws a fresh seed.
        stop: texts that end generation; they are not part of the output.
        stop_token_ids: token ids that end generation, beside the model's own.
        ignore_eos: go on after the model's end-of-sequence tokens.

    Numbers may be of any type that Python counts as integer or real, NumPy's scalars too; they become ``int``
    and ``float``. The fields after these are known by name only: a value that asks for something is refused.

    Raises:
        InvalidRequest: a value of the wrong type or out of range; names parameter, value and limit.
        NotYetSupported: a parameter whose feature has not arrived.
    """

    max_tokens: int | None = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str | None = ()
    stop_token_ids: tuple[int, ...] | list[int] | None = ()
    ignore_eos: bool = False

    n: int = 1
    best_of: int | None = None
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: object = None
    bad_words: object = None
    allowed_token_ids: object = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guided_decoding: object = None
    structured_outputs: object = None
    use_beam_search: bool = False

    def __post_init__(self) -> None:
        for name, neutral in _PLANNED.items():
            value = getattr(self, name)
            if not any(_is_same(value, nothing) for nothing in neutral):
                raise NotYetSupported(
                    f"sampling parameter {name}={shown(value)} is not supported yet; leave it out"
                )
        self._check_int("max_tokens", "at least 1, or None", lambda v: v >= 1, optional=True)
        self._check_int("n", "from 1 to 64", lambda v: 1 <= v <= 64)
        self._check_float("temperature", "from 0 to 1e6", lambda v: 0 <= v <= MAX_TEMPERATURE)
        self._check_int("top_k", "from 0 (off) to 2**31 - 1", lambda v: -1 <= v <= MAX_TOP_K)
        self._check_float("top_p", "above 0 and at most 1", lambda v: 0 < v <= 1)
        self._check_float("min_p", "from 0 to 1", lambda v: 0 <= v <= 1)
        self._check_int("seed", "from 0 to 2**64 - 1, or None", lambda v: 0 <= v < 2**64, optional=True)
        self._check("ignore_eos", isinstance(self.ignore_eos, bool), "True or False")
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        object.__setattr__(self, "stop", self._texts())
        object.__setattr__(self, "stop_token_ids", self._token_ids())

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def _check(self, name: str, ok: bool, limit: str) -> None:
        if not ok:
            raise InvalidRequest(f"{name}={shown(getattr(self, name))}: must be {limit}", param=name)

    def _check_int(
        self, name: str, limit: str, in_range: Callable[[int], bool], *, optional: bool = False
    ) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        self._check(name, _is_integer(value) and in_range(int(value)), f"an integer, {limit}")
        object.__setattr__(self, name, int(value))

    def _check_float(self, name: str, limit: str, in_range: Callable[[float], bool]) -> None:
        value = getattr(self, name)
        try:
            number = float(value) if _is_number(value) else math.nan
        except OverflowError:  # an integer beyond every float
            number = math.inf
        self._check(name, math.isfinite(number) and in_range(number), f"a number {limit}")
        object.__setattr__(self, name, number)

    def _texts(self) -> tuple[str, ...]:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if stop is None:
            return ()
        ok = isinstance(stop, (tuple, list)) and all(isinstance(s, str) and s for s in stop)
        self._check("stop", ok, "a text or a list of texts, none of them empty")
        return tuple(stop)

    def _token_ids(self) -> tuple[int, ...]:
        ids = self.stop_token_ids
        if ids is None:
            return ()
        ok = isinstance(ids, (tuple, list)) and all(_is_integer(t) and t >= 0 for t in ids)
        self._check("stop_token_ids", ok, "a list of token ids, each 0 or more")
        return tuple(int(t) for t in ids)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)


def _is_same(value: object, nothing: object) -> bool:
    """Whether ``value`` is a neutral one, without asking a stranger's ``==``, which may answer anything."""
    if nothing is None or isinstance(nothing, bool):
        return value is nothing
    if isinstance(nothing, int):
        return _is_number(value) and value == nothing
    return type(value) is type(nothing) and value == nothing
