"""Words that must not appear: texts, however they are cut into tokens, and sequences of token ids.

A text is forbidden as bytes. Whatever tokens spell it, one of them completes it, and that one is not chosen:
it contains the text, or it begins with the rest of it where the sequence ends with the part before. So
"word" is found in " word" and in "w" + "ord" as well.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Final, Protocol

import numpy as np

from octavo.engine.sampling.ranking import IdArray

_MAX_REMEMBERED: Final = 8192


class TokenBytes(Protocol):
    """What is needed of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of a token, special tokens as written; b"" for an id without a token."""
        ...

    def visible_bytes(self, token_id: int) -> bytes:
        """Bytes that a token adds to a text; none for a special token."""
        ...


class Vocabulary:
    """Finds tokens by their bytes. The first searches read and sort them all, for some tenths of a second.

    Args:
        tokenizer: may have fewer tokens than ``vocab_size``, the width of the logits.
    """

    def __init__(self, tokenizer: TokenBytes, vocab_size: int) -> None:
        self.visible_bytes = tokenizer.visible_bytes
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        # A text that could be completed now can be after the next token too, if it repeats itself.
        self._starting = lru_cache(_MAX_REMEMBERED)(self._find_starting)

    def starting_with(self, text: bytes) -> IdArray:
        """Ids of the tokens that begin with ``text``, which is not empty."""
        return self._starting(text)

    def _find_starting(self, text: bytes) -> IdArray:
        ids, texts = self._sorted
        first = bisect_left(texts, text)
        return ids[first : bisect_right(texts, text, lo=first, key=lambda t: t[: len(text)])]

    def containing(self, text: bytes) -> IdArray:
        """Ids of the tokens with ``text`` anywhere in them, rising."""
        joined, ends = self._joined
        found, at = [], joined.find(text)
        while at >= 0:
            token_id = bisect_right(ends, at)
            if at + len(text) <= ends[token_id]:
                found.append(token_id)
                at = joined.find(text, ends[token_id])
            else:  # it lies across a border of tokens
                at = joined.find(text, at + 1)
        return np.array(found, np.int64)

    @cached_property
    def _texts(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(token_id) for token_id in range(self._vocab_size)]

    @cached_property
    def _sorted(self) -> tuple[IdArray, list[bytes]]:
        ids = sorted(range(self._vocab_size), key=self._texts.__getitem__)
        return np.array(ids, np.int64), [self._texts[token_id] for token_id in ids]

    @cached_property
    def _joined(self) -> tuple[bytes, list[int]]:
        return b"".join(self._texts), list(accumulate(map(len, self._texts)))


class BadWords:
    """What one sequence may not be continued with. Prompt and output count as one text.

    Args:
        words: texts, and sequences of token ids.
        vocabulary: for the texts.
        token_ids: the sequence so far.

    Raises:
        ValueError: there are texts, but no vocabulary.
    """

    def __init__(
        self,
        words: Sequence[str | Sequence[int]],
        vocabulary: Vocabulary | None,
        token_ids: Sequence[int],
    ) -> None:
        # A lone surrogate is in no text; it has bytes like the others and is never found.
        self._texts = [w.encode("utf-8", "surrogatepass") for w in words if isinstance(w, str)]
        self._sequences = [tuple(w) for w in words if not isinstance(w, str)]
        if self._texts and vocabulary is None:
            raise ValueError("bad_words has texts, but the model has no tokenizer")
        self._vocabulary = vocabulary
        always = [np.array([s[0] for s in self._sequences if len(s) == 1], np.int64)]
        if vocabulary is not None:
            always += [vocabulary.containing(text) for text in self._texts]
        self._always = np.concatenate(always)
        self._num_bytes = max(map(len, self._texts), default=1) - 1
        self._num_tokens = max(map(len, self._sequences), default=1) - 1
        self._tail = self._text_end(token_ids)
        self._recent = tuple(token_ids[-self._num_tokens :]) if self._num_tokens else ()

    def accept(self, token_id: int) -> None:
        """Take in the next token of the sequence."""
        if self._num_bytes and self._vocabulary is not None:
            self._tail = (self._tail + self._vocabulary.visible_bytes(token_id))[-self._num_bytes :]
        if self._num_tokens:
            self._recent = (*self._recent, token_id)[-self._num_tokens :]

    def banned(self) -> Iterator[IdArray]:
        """Ids that would complete a bad word now; some may come more than once."""
        yield self._always
        if self._vocabulary is not None:
            for text in self._texts:
                for split in range(1, len(text)):
                    if self._tail.endswith(text[:split]):
                        yield self._vocabulary.starting_with(text[split:])
        for sequence in self._sequences:
            head = sequence[:-1]
            if head and self._recent[-len(head) :] == head:
                yield np.array(sequence[-1:], np.int64)

    def _text_end(self, token_ids: Sequence[int]) -> bytes:
        """The last bytes of the sequence's text, as many as a bad word can begin with."""
        tail = b""
        if self._num_bytes and self._vocabulary is not None:
            for token_id in reversed(token_ids):
                tail = self._vocabulary.visible_bytes(token_id) + tail
                if len(tail) >= self._num_bytes:
                    break
        return tail[-self._num_bytes :] if self._num_bytes else b""
