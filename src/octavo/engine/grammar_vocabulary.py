"""A model's vocabulary as the grammar library wants it: the exact bytes of every token."""

from collections.abc import Sequence

import llguidance
import numpy as np

from octavo.text.tokenizer import Tokenizer


class GrammarVocabulary:
    """The tokens that masks are about.

    Bytes come from ``Tokenizer.token_bytes``, so grammars are about what decoding gives, whichever kind of
    file the tokenizer came from. No text is spelled with special tokens.

    Args:
        tokenizer: the model's.
        vocab_size: width of the logits; ids beyond the tokenizer's are padding and never allowed.
        end_token_ids: tokens that end generation, at least one.

    Attributes:
        size: V.
        num_words: W = ceil(V / 32), the words of a mask.
        end_mask: uint32 [W] with the bits of the end tokens.
        library: the vocabulary as llguidance has it.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        self.size = vocab_size
        self.num_words = -(-vocab_size // 32)
        self.end_token_ids = frozenset(end_token_ids)
        self.end_mask = np.zeros(self.num_words, np.uint32)
        for id_ in end_token_ids:
            self.end_mask[id_ // 32] |= np.uint32(1 << id_ % 32)
        self.library = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Spelling(tokenizer, vocab_size, end_token_ids)),
            eos_token=list(end_token_ids),
        )


class _Spelling:
    """The interface that llguidance reads a vocabulary through, and asks how a model would spell a text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        self.tokens = [tokenizer.token_bytes(id_) for id_ in range(vocab_size)]
        self.special_token_ids = [
            id_ for id_ in range(vocab_size) if tokenizer.is_special(id_) or id_ in end_token_ids
        ]
        self.eos_token_id = end_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self._tokenizer = tokenizer
        special = frozenset(self.special_token_ids)
        self._id_of = {data: id_ for id_, data in enumerate(self.tokens) if data and id_ not in special}
        self._longest = max(map(len, self._id_of), default=0)

    def __call__(self, text: str) -> list[int]:
        """Tokens whose bytes put together are ``text``, or begin it where no token goes on.

        Where a grammar leaves one text only, the library allows the first of these tokens alone. They must be
        exact, and a tokenizer need not be: it may put a space in front, normalize, or drop a character.
        """
        wanted = text.encode()
        for anchor in ("", "\n"):  # behind an anchor no space is put in front
            skipped = self._tokenizer.encode(anchor, add_bos=False, parse_special=False) if anchor else []
            ids = self._tokenizer.encode(anchor + text, add_bos=False, parse_special=False)
            if ids[: len(skipped)] == skipped and self._bytes(ids[len(skipped) :]) == wanted:
                return ids[len(skipped) :]
        return self._spell_greedily(wanted)

    def _bytes(self, ids: list[int]) -> bytes:
        return b"".join(self.tokens[id_] if id_ < len(self.tokens) else b"?" for id_ in ids)

    def _spell_greedily(self, data: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(data):
            lengths = range(min(self._longest, len(data) - at), 0, -1)
            spelled = (self._id_of.get(data[at : at + length]) for length in lengths)
            id_ = next((id_ for id_ in spelled if id_ is not None), None)
            if id_ is None:
                break
            ids.append(id_)
            at += len(self.tokens[id_])
        return ids
