"""How the next token is chosen: the user's parameters, checked when they are made."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Final, Literal

from octavo.core.errors import InvalidRequest, shown
from octavo.core.structured import StructuredOutput

# Beyond these a value no longer means anything else; rows keep it as float32.
MAX_TOP_K: Final = 2**31 - 1
MAX_TEMPERATURE: Final = 1e6
MAX_REPETITION_PENALTY: Final = 1e6
MAX_PENALTY: Final = 2.0  # presence and frequency, as in OpenAI's API; so are the next two
MAX_LOGIT_BIAS: Final = 100.0
MAX_LOGPROBS: Final = 20
MAX_SAMPLES: Final = 64

MAX_BAD_WORDS: Final = 256  # each is looked for before every token,
MAX_BAD_WORDS_LEN: Final = 4096  # and in every piece: so many characters and token ids in all of them
MAX_BEAMS: Final = 32
MAX_LENGTH_PENALTY: Final = 5.0

# What changes or ends single sequences has no meaning for beams, which are compared by the model's own
# log-probabilities. Each is refused by name where it asks for something.
_NOT_WITH_BEAMS: Final = (
    "stop",
    "min_tokens",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "logprobs",
    "structured_outputs",
)

BadWord = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request.

    Logits are changed by logit_bias, repetition_penalty, frequency_penalty and presence_penalty, the bans
    (allowed_token_ids, bad_words, min_tokens) and temperature, then filtered by top_k, top_p, min_p and
    typical_p, in this order.

    Attributes:
        max_tokens: tokens to generate at most, or None for as many as the context holds.
        temperature: 0 picks the most likely token; otherwise logits are divided by it. At most 1e6.
        top_k: keep the k most likely tokens; 0 (or -1) keeps all. At most 2**31 - 1.
        top_p: keep the smallest set of tokens whose probability reaches this.
        min_p: drop tokens less likely than this fraction of the most likely one.
        typical_p: keep the smallest set of tokens whose probability reaches this, taking first those whose
            information content is nearest to the entropy.
        seed: makes sampling repeatable whatever else runs; None draws a fresh seed.
        stop: texts that end generation; they are not part of the output.
        stop_token_ids: token ids that end generation, beside the model's own.
        include_stop_str_in_output: keep the stop text, or the text of the token that ended it, in the output.
        ignore_eos: go on after the model's end-of-sequence tokens.
        min_tokens: until there are so many, no token that ends generation is chosen and no stop text ends it,
            unless structured_outputs allows nothing but such a token: what is complete ends.
        skip_special_tokens: leave special tokens out of the text.

        repetition_penalty: of tokens that are in the prompt or the output, positive logits are divided by it
            and negative ones multiplied; 1 is off. Above 0, at most 1e6.
        frequency_penalty: subtracted from a token's logit as often as the token is in the output. -2 to 2.
        presence_penalty: subtracted once, if it is there at all. -2 to 2.
        logit_bias: by token id, added to its logit. -100 to 100. As JSON has no other keys than texts, an id
            may be one.
        bad_words: what must not appear. A text is not completed by any token, however it is spelled, with a
            space before it or inside a longer word; a list of token ids never comes in that order. Both also
            count when they begin in the prompt. At most 4096 characters and ids in all of them together.
        allowed_token_ids: nothing else is chosen; None allows all.

        logprobs: give the log-probability of each token, and of so many of the likeliest; None is off. They
            are those of the model's raw logits, before all of the above. 0 to 20.
        prompt_logprobs: the same of the prompt's tokens. 0 to 20.
        n: continuations to give, 1 to 64; continuation i draws its own random numbers from the seed.
        best_of: continuations to generate, of which the n likeliest are given; None is n. n to 64.

        structured_outputs: the language that the output belongs to; or the fields of one as a mapping.

        use_beam_search: search for the likeliest continuations instead of drawing them, with ``best_of``
            beams (or n), at most 32; temperature, filters and seed have no meaning then.
        length_penalty: a beam's score is its log-probability divided by its length to this power, -5 to 5.
        early_stopping: True ends the search with as many finished beams; False when none that lives is better
            than they are, at its length so far; "never" when none could become better.

    Numbers may be of any type that Python counts as integer or real, NumPy's scalars too; they become ``int``
    and ``float``.

    Raises:
        InvalidRequest: a value of the wrong type or out of range; names parameter, value and limit.
    """

    max_tokens: int | None = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] | list[str] | str | None = ()
    stop_token_ids: tuple[int, ...] | list[int] | None = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = field(default=None, hash=False)
    bad_words: Sequence[BadWord] | str | None = ()
    allowed_token_ids: Sequence[int] | None = None

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None

    structured_outputs: StructuredOutput | Mapping[str, Any] | None = None

    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        self._check_int("max_tokens", "at least 1, or None", lambda v: v >= 1, optional=True)
        self._check_float("temperature", "from 0 to 1e6", lambda v: 0 <= v <= MAX_TEMPERATURE)
        self._check_int("top_k", "from 0 (off) to 2**31 - 1", lambda v: -1 <= v <= MAX_TOP_K)
        for name in ("top_p", "typical_p"):
            self._check_float(name, "above 0 and at most 1", lambda v: 0 < v <= 1)
        self._check_float("min_p", "from 0 to 1", lambda v: 0 <= v <= 1)
        self._check_int("seed", "from 0 to 2**64 - 1, or None", lambda v: 0 <= v < 2**64, optional=True)
        self._check_float(
            "repetition_penalty", "above 0 and at most 1e6", lambda v: 0 < v <= MAX_REPETITION_PENALTY
        )
        for name in ("frequency_penalty", "presence_penalty"):
            self._check_float(name, "from -2 to 2", lambda v: abs(v) <= MAX_PENALTY)
        for name in ("logprobs", "prompt_logprobs"):
            self._check_int(name, "from 0 to 20, or None", lambda v: 0 <= v <= MAX_LOGPROBS, optional=True)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        self._check_int("min_tokens", "at least 0", lambda v: v >= 0)
        if self.max_tokens is not None:
            limit = f"at most max_tokens={shown(self.max_tokens)}"
            self._check("min_tokens", self.min_tokens <= self.max_tokens, limit)
        self._check_int("n", "from 1 to 64", lambda v: 1 <= v <= MAX_SAMPLES)
        limit = f"from n={self.n} to 64, or None"
        self._check_int("best_of", limit, lambda v: self.n <= v <= MAX_SAMPLES, optional=True)
        self._set("top_k", max(self.top_k, 0))
        self._set("stop", self._texts())
        self._set("stop_token_ids", self._token_ids("stop_token_ids"))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", self._token_ids("allowed_token_ids", least=1))
        self._set("logit_bias", self._bias())
        self._set("bad_words", self._bad_words())
        self._set("structured_outputs", self._structured())
        self._check_beams()

    def _structured(self) -> StructuredOutput | None:
        given = self.structured_outputs
        if isinstance(given, Mapping):
            try:
                return StructuredOutput(**given)
            except TypeError:
                names = ", ".join(sorted(str(name) for name in given))
                self._check("structured_outputs", False, f"made of known fields; given: {names}")
        ok = given is None or isinstance(given, StructuredOutput)
        self._check("structured_outputs", ok, "a StructuredOutput, its fields as a mapping, or None")
        return given if isinstance(given, StructuredOutput) else None

    def _check_beams(self) -> None:
        self._check("use_beam_search", isinstance(self.use_beam_search, bool), "True or False")
        self._check_float("length_penalty", "from -5 to 5", lambda v: abs(v) <= MAX_LENGTH_PENALTY)
        early = self.early_stopping
        self._check("early_stopping", isinstance(early, bool) or early == "never", 'True, False or "never"')
        if not self.use_beam_search:
            return
        name = "n" if self.best_of is None else "best_of"
        self._check(name, self.num_samples <= MAX_BEAMS, f"at most {MAX_BEAMS} with use_beam_search")
        for name in _NOT_WITH_BEAMS:
            value = getattr(self, name)
            self._check(name, value in (_NEUTRAL[name], {}), "left out with use_beam_search")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def num_samples(self) -> int:
        """Continuations to generate: ``best_of``, or else ``n``."""
        return self.n if self.best_of is None else self.best_of

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens to record beside each generated token, or None to record nothing.

        Choosing the best continuations takes the log-probabilities of their tokens even if nobody reads them.
        """
        return 0 if self.logprobs is None and self.num_samples > self.n else self.logprobs

    def token_ids_by_name(self) -> dict[str, tuple[int, ...]]:
        """All token ids in here by parameter, to be checked against a vocabulary; no entry is empty."""
        sequences = [word for word in self.bad_words or () if not isinstance(word, str)]
        ids = {
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "allowed_token_ids": tuple(self.allowed_token_ids or ()),
            "logit_bias": tuple(int(token_id) for token_id in self.logit_bias or ()),
            "bad_words": tuple(token_id for sequence in sequences for token_id in sequence),
        }
        return {name: found for name, found in ids.items() if found}

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

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
        self._set(name, int(value))

    def _check_float(self, name: str, limit: str, in_range: Callable[[float], bool]) -> None:
        number = _as_float(getattr(self, name))
        self._check(name, math.isfinite(number) and in_range(number), f"a number {limit}")
        self._set(name, number)

    def _texts(self) -> tuple[str, ...]:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if stop is None:
            return ()
        ok = isinstance(stop, (tuple, list)) and all(isinstance(s, str) and s for s in stop)
        self._check("stop", ok, "a text or a list of texts, none of them empty")
        return tuple(stop)

    def _token_ids(self, name: str, *, least: int = 0) -> tuple[int, ...]:
        ids = getattr(self, name)
        if ids is None:
            return ()
        ok = _is_list(ids) and len(ids) >= least and all(_is_token_id(t) for t in ids)
        self._check(name, ok, f"a list of {'one or more ' * least}token ids, each 0 or more")
        return tuple(int(t) for t in ids)

    def _bias(self) -> dict[int, float] | None:
        bias = self.logit_bias
        if bias is None:
            return None
        ok = isinstance(bias, Mapping) and all(
            (_is_token_id(t) or _is_decimal(t)) and abs(_as_float(b)) <= MAX_LOGIT_BIAS
            for t, b in bias.items()
        )
        self._check("logit_bias", ok, "a mapping from token ids, each 0 or more, to numbers from -100 to 100")
        return {int(t): float(b) for t, b in bias.items()}

    def _bad_words(self) -> tuple[str | tuple[int, ...], ...]:
        words = (self.bad_words,) if isinstance(self.bad_words, str) else self.bad_words
        if words is None:
            return ()
        if _is_list(words):
            self._check("bad_words", len(words) <= MAX_BAD_WORDS, f"at most {MAX_BAD_WORDS} of them")
        ok = _is_list(words) and all(_is_bad_word(word) for word in words)
        self._check("bad_words", ok, "a list of texts and lists of token ids, none of them empty")
        limit = f"at most {MAX_BAD_WORDS_LEN} characters and token ids in all"
        self._check("bad_words", sum(map(len, words)) <= MAX_BAD_WORDS_LEN, limit)
        return tuple(w if isinstance(w, str) else tuple(int(t) for t in w) for w in words)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_token_id(value: Any) -> bool:
    return _is_integer(value) and int(value) >= 0


def _is_decimal(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"0|[1-9][0-9]{0,17}", value) is not None


def _is_list(value: object) -> bool:
    return isinstance(value, (tuple, list))


def _is_bad_word(value: object) -> bool:
    if isinstance(value, str):
        return value != ""
    return isinstance(value, (tuple, list)) and len(value) > 0 and all(_is_token_id(t) for t in value)


def _as_float(value: Any) -> float:
    """A number as a float: infinite if it is beyond every float, NaN if it is no number."""
    try:
        return float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    except OverflowError:
        return math.inf


_NEUTRAL: Final = {f.name: f.default for f in fields(SamplingParams)} | {"logit_bias": None}
