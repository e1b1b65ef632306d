"""Structured output: which tokens keep an output in the language that its user asked for.

Owns the grammars. A ``GrammarCompiler`` turns a ``StructuredOutput`` into ``GrammarMatcher``s, one for each
sequence; a matcher follows the tokens of its sequence and says, as bits, which may come next. Parsing and
masks are llguidance's; here is what surrounds them: limits, a cache, errors that stay with their request.

Legend: R rows, V width of the logits, W = ceil(V / 32) words of a mask. Bit ``t % 32`` of word ``t // 32`` is
token ``t``.
"""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Final

import llguidance
import numpy as np
import numpy.typing as npt

from octavo.core.errors import InvalidRequest, OctavoError
from octavo.core.structured import StructuredOutput
from octavo.engine.grammar_vocabulary import GrammarVocabulary
from octavo.text.tokenizer import Tokenizer

Mask = npt.NDArray[np.uint32]

COMPILE_TIME_LIMIT_S: Final = 10.0
COMPILE_THREADS: Final = 2
MAX_CACHED_GRAMMARS: Final = 64

# The compiler descends once per nested rule, schema or reference, some 2 KB of stack each time, and what fits
# in the limits of ``StructuredOutput`` may nest ten thousand deep: with the usual 8 MB the process would die.
# Pages that are not touched cost nothing.
_COMPILE_STACK_BYTES: Final = 128 * 2**20

# A state of the lexer takes 1 to 2 KB; the library's own limit would let one grammar take half a gigabyte.
_MAX_LEXER_STATES: Final = 50_000

# Between the tokens of JSON any white space is allowed by its grammar, but a model that has lost its thread
# writes nothing else. So it is as people lay JSON out: a space, or a new line with its indentation.
_JSON_WHITE_SPACE: Final = r"\x20|\x0A[\x20\x09]{0,32}"

_MOST_SHOWN: Final = 300


_FAILED: Final = "the grammar "  # how the message of every GrammarFailed begins


def is_grammar_failure(reason: str) -> bool:
    """Whether it was its grammar that ended a request: it cannot go on, or is too much work."""
    return reason.startswith(_FAILED)


class GrammarFailed(OctavoError):
    """A sequence's grammar cannot go on; nothing is wrong with any other sequence."""


class GrammarMatcher:
    """The state of one sequence's grammar; made by ``GrammarCompiler``. Belongs to one thread at a time."""

    def __init__(self, library: llguidance.LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self._library = library
        self._vocabulary = vocabulary
        self._num_accepted = 0
        self._has_ended = False  # the library does not count end tokens, so it never sees one

    @property
    def is_done(self) -> bool:
        """Whether the output is complete and nothing but an end token may follow, or one has come."""
        return self._has_ended or (self._library.is_stopped() and not self._library.is_error())

    @property
    def may_end(self) -> bool:
        """Whether the output is complete as it stands, though it may be possible to go on."""
        return self._has_ended or (not self._library.is_error() and self._library.is_accepting())

    def fill_mask(self, out: Mask) -> None:
        """Write which tokens may come next; when nothing else may, the end tokens.

        Args:
            out: uint32 [W], contiguous. Every bit is written; those beyond the vocabulary become 0.

        Raises:
            GrammarFailed: no token of the vocabulary goes on, or to find one takes too much; ``out`` then has
                no meaning.
        """
        _check_mask(out, (self._vocabulary.num_words,))
        if self.is_done:
            out[:] = self._vocabulary.end_mask
        else:
            self._library.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
            self._check()

    def accept(self, token_id: int) -> None:
        """Follow the sequence by one token.

        Raises:
            GrammarFailed: the token may not come here; the matcher stays where it was.
        """
        if not self._try(token_id):
            self._check()
            raise GrammarFailed(f"{_FAILED}does not go on with token {token_id}")
        self._num_accepted += 1

    def count_acceptable(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first on, ``accept`` would take one after the other."""
        before = self._num_accepted
        for token_id in token_ids:
            if not self._try(token_id):
                break
            self._num_accepted += 1
        count = self._num_accepted - before
        self.rollback(count)
        return count

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens accepted.

        Raises:
            ValueError: more than were accepted since the matcher was made.
        """
        if not 0 <= num_tokens <= self._num_accepted:
            raise ValueError(f"cannot take back {num_tokens} tokens of {self._num_accepted}")
        self._num_accepted -= num_tokens
        if num_tokens and self._has_ended:
            self._has_ended = False
            num_tokens -= 1
        if num_tokens:
            self._library.rollback(num_tokens)

    def fork(self) -> "GrammarMatcher":
        """An independent matcher at the same place, for another sequence that begins with the same tokens."""
        copy = GrammarMatcher(self._library.deep_copy(), self._vocabulary)
        copy._num_accepted, copy._has_ended = self._num_accepted, self._has_ended
        return copy

    def _try(self, token_id: int) -> bool:
        if self._has_ended:
            return False
        if token_id in self._vocabulary.end_token_ids:
            self._has_ended = self.may_end
            return self._has_ended
        in_vocabulary = 0 <= token_id < self._vocabulary.size
        return in_vocabulary and not self.is_done and self._library.try_consume_tokens([token_id]) == 1

    def _check(self) -> None:
        if self._library.is_error():
            raise GrammarFailed(f"{_FAILED}cannot go on: {_shortened(self._library.get_error())}")


class _Compilation:
    """One grammar's way through the compiler; its end is a matcher, or the reason why there is none."""

    future: Future[GrammarMatcher | str]
    started_s: float | None = None


class PendingGrammar:
    """A grammar that is being compiled for one request."""

    def __init__(self, compilation: _Compilation, kind: str, time_limit_s: float) -> None:
        self._compilation = compilation
        self._kind = kind
        self._time_limit_s = time_limit_s

    def poll(self) -> GrammarMatcher | None:
        """A new matcher at the beginning of its language, or None as long as there is none. Never waits.

        Raises:
            InvalidRequest: the library refuses the grammar, or compiling it takes too long.
        """
        if self._compilation.future.done():
            compiled = self._compilation.future.result()
            if isinstance(compiled, str):
                raise InvalidRequest(f"{self._kind}: {compiled}", param=self._kind)
            return compiled.fork()
        if self._left_s() <= 0:
            raise InvalidRequest(
                f"{self._kind}: compiling it takes more than {self._time_limit_s} s; make it simpler",
                param=self._kind,
            )
        return None

    def result(self) -> GrammarMatcher:
        """Like ``poll``, but waits."""
        while (matcher := self.poll()) is None:
            wait([self._compilation.future], timeout=max(self._left_s(), 0))
        return matcher

    def _left_s(self) -> float:
        started_s = self._compilation.started_s  # waiting for a thread does not count
        running_s = 0.0 if started_s is None else time.monotonic() - started_s
        return self._time_limit_s - running_s


class GrammarCompiler:
    """Makes matchers for one model's vocabulary. May be shared between threads.

    The first grammar also reads the vocabulary (half a second for 50 000 tokens); who never asks for
    structured output spends nothing on it.

    Args:
        tokenizer: the model's.
        vocab_size: V; ids beyond the tokenizer's own are padding and never allowed.
        end_token_ids: the tokens that end generation; ids of V or more are left out.
        num_threads: threads that fill masks.
        time_limit_s: time that compiling one grammar may take.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        end_token_ids: Sequence[int],
        num_threads: int = 1,
        time_limit_s: float = COMPILE_TIME_LIMIT_S,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = tuple(id_ for id_ in end_token_ids if 0 <= id_ < vocab_size)
        self._num_threads = num_threads
        self._time_limit_s = time_limit_s
        self._lock = threading.Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self._compilations: OrderedDict[StructuredOutput, _Compilation] = OrderedDict()
        self._pool = ThreadPoolExecutor(COMPILE_THREADS, thread_name_prefix="grammar")

    @property
    def num_words(self) -> int:
        """W, the words of a mask."""
        return -(-self._vocab_size // 32)

    def compile(self, structured: StructuredOutput) -> PendingGrammar:
        """Begin to compile, in another thread; equal requests share the work and its result. Never waits.

        Raises:
            InvalidRequest: the model has no end token, so that nothing could say that an output is complete.
        """
        if not self._end_token_ids:
            raise InvalidRequest(
                f"{structured.kind}: the model has no end token, which structured output needs",
                param=structured.kind,
            )
        with self._lock:
            compilation = self._compilations.pop(structured, None)
            if compilation is None:
                compilation = self._start(structured)
            self._compilations[structured] = compilation  # the latest used is last
            while len(self._compilations) > MAX_CACHED_GRAMMARS:
                self._compilations.popitem(last=False)
        return PendingGrammar(compilation, structured.kind, self._time_limit_s)

    def fill_masks(self, matchers: Sequence[GrammarMatcher], out: Mask) -> dict[int, str]:
        """``fill_mask`` of many sequences, in parallel.

        Args:
            matchers: R matchers, all different, of this compiler.
            out: uint32 [R, W], contiguous.

        Returns:
            The reason by index of those that failed; their rows of ``out`` have no meaning.
        """
        if not matchers:
            return {}
        vocabulary = self._get_vocabulary()
        _check_mask(out, (len(matchers), vocabulary.num_words))
        open_: list[tuple[llguidance.LLMatcher, int]] = []
        for i, matcher in enumerate(matchers):
            if matcher.is_done:
                out[i] = vocabulary.end_mask
            else:
                open_.append((matcher._library, i))
        if len(open_) > 1 and self._num_threads > 1:
            self._executor.unsafe_compute_mask_ptr(open_, out.ctypes.data, out.strides[0], len(matchers))
        else:
            for library, i in open_:
                library.unsafe_compute_mask_ptr(out[i].ctypes.data, out.strides[0])
        return {
            i: f"{_FAILED}cannot go on: {_shortened(library.get_error())}"
            for library, i in open_
            if library.is_error()
        }

    def close(self) -> None:
        """Begin nothing more; what is being compiled is finished and forgotten."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def _executor(self) -> llguidance.LLExecutor:
        return llguidance.LLExecutor(self._num_threads)

    def _get_vocabulary(self) -> GrammarVocabulary:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = GrammarVocabulary(
                    self._tokenizer, vocab_size=self._vocab_size, end_token_ids=self._end_token_ids
                )
            return self._vocabulary

    def _start(self, structured: StructuredOutput) -> _Compilation:
        compilation = _Compilation()
        before = threading.stack_size(_COMPILE_STACK_BYTES)  # for the pool's thread, if it begins one
        try:
            compilation.future = self._pool.submit(self._compile, structured, compilation)
        finally:
            threading.stack_size(before)
        return compilation

    def _compile(self, structured: StructuredOutput, compilation: _Compilation) -> GrammarMatcher | str:
        try:
            vocabulary = self._get_vocabulary()
            compilation.started_s = time.monotonic()
            library = llguidance.LLMatcher(
                vocabulary.library,
                _to_library(structured),
                log_level=0,
                limits=llguidance.LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False),
            )
            if not library.is_error():
                library.compute_bitmask()  # takes longest the first time; copies share what it found
            return _shortened(library.get_error()) or GrammarMatcher(library, vocabulary)
        except Exception as error:  # whatever a grammar brings about is that request's trouble alone
            return _shortened(str(error)) or repr(error)


def _to_library(structured: StructuredOutput) -> str:
    """The request in the form that the library compiles."""
    matcher = llguidance.LLMatcher
    if structured.choice is not None:
        # One terminal, so that the lexer tells the choices apart: the parser has at most 2000 at once.
        choices = " | ".join(map(_lark_text, structured.choice))
        return matcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {choices}")
    if structured.regex is not None:
        return matcher.grammar_from_regex(structured.regex)
    if structured.grammar is not None:
        return llguidance.grammar_from("grammar", structured.grammar)
    return matcher.grammar_from_json_schema(
        str(structured.json_schema), defaults={"whitespace_pattern": _JSON_WHITE_SPACE}
    )


def _lark_text(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")  # Lark takes no control character as it is


def _shortened(reason: str) -> str:
    """The library's reason in one line, without what it says of its own state."""
    text = " ".join(reason.replace("<non-verbose/>", "").split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _check_mask(out: Mask, shape: tuple[int, ...]) -> None:
    if out.dtype != np.uint32 or out.shape != shape or not out.flags.c_contiguous:
        raise ValueError(f"a mask must be contiguous uint32 {list(shape)}, not {out.dtype} {list(out.shape)}")
