"""Text to token ids and back, with exact bytes for every token."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from octavo.core.errors import InvalidRequest

if TYPE_CHECKING:
    import tokenizers

    from octavo.text.pieces import PieceBytes


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything about a tokenizer that its splitting and merging rules do not say.

    Attributes:
        vocab_size: ids run from 0 to this, exclusive. A model's logits may be padded beyond it.
        piece_bytes: bytes of an ordinary vocabulary entry.
        verbatim: text of the tokens that are matched whole in a prompt (added tokens), by id.
        special: ids left out of decoded text unless asked for: control tokens and end tokens.
        bos_token_id: the model's beginning-of-sequence token, whether or not prompts get it.
        prefix: ids the model expects in front of every prompt: the BOS token, or nothing.
        eos_token_ids: ids that end generation, the model's main one first.
        strip_leading_space: decoded text loses one leading space, because encoding adds one.
    """

    vocab_size: int
    piece_bytes: PieceBytes
    verbatim: dict[int, str] = field(default_factory=dict)
    special: frozenset[int] = frozenset()
    bos_token_id: int | None = None
    prefix: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    strip_leading_space: bool = False


class Tokenizer:
    """A model's tokenizer; safe to share between threads.

    Splitting and merging is the ``tokenizers`` library's. Decoding is done here, from bytes: the text of any
    ids is the UTF-8 reading of their bytes put together, with U+FFFD only where those bytes are not UTF-8.
    For valid UTF-8 this equals what ``tokenizers`` decodes (without transformers' cosmetic
    ``clean_up_tokenization_spaces``, which would make streamed and whole text differ).

    A character that a vocabulary cannot spell is dropped, as in ``tokenizers``: SmolLM2's, for example, lacks
    21 of the 256 bytes, among them six control characters and the lead bytes of planes 4 to 16.
    """

    def __init__(self, backend: tokenizers.Tokenizer, spec: TokenizerSpec) -> None:
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = False
        self._backend = backend
        self._spec = spec
        self._bytes_of: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """Number of token ids; they run from 0."""
        return self._spec.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The beginning-of-sequence token, or None if the model has none."""
        return self._spec.bos_token_id

    @property
    def adds_bos(self) -> bool:
        """Whether prompts get tokens put in front of them."""
        return bool(self._spec.prefix)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end generation; ``octavo.text.end_tokens`` says how they are found."""
        return self._spec.eos_token_ids

    @property
    def strips_leading_space(self) -> bool:
        """Whether decoded text loses the space that encoding put in front."""
        return self._spec.strip_leading_space

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that decoded text leaves out."""
        return self._spec.special

    def encode(self, text: str, *, add_bos: bool = True, parse_special: bool = True) -> list[int]:
        """Turn text into token ids.

        Args:
            text: a prompt, or a rendered chat template.
            add_bos: put the BOS token in front if the model asks for one and the text does not begin with it
                already, as rendered chat templates often do. Exactly one results either way. An EOS token is
                never appended, because a prompt is there to be continued.
            parse_special: read special tokens written out in the text (``<|im_end|>``) as those tokens, the
                default as in transformers; otherwise their characters are ordinary text. Tokens that are
                matched whole without being special, such as ``<think>``, are matched in both cases.

        Raises:
            InvalidRequest: not a text, or one with a lone surrogate, which no UTF-8 can hold.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"prompt: expected a text, got {type(text).__name__}", param="prompt")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"prompt: character {error.start} is a lone surrogate (U+{ord(text[error.start]):04X})",
                param="prompt",
            ) from None
        backend = self._backend if parse_special else self._literal
        ids = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids  # "fast": without offsets
        prefix = self._spec.prefix
        if add_bos and tuple(ids[: len(prefix)]) != prefix:
            return [*prefix, *ids]
        return list(ids)

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The backend once more, reading special tokens as ordinary text; threads share both."""
        literal = copy.deepcopy(self._backend)
        literal.encode_special_tokens = True
        return literal

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continuation: bool = False) -> str:
        """Turn token ids into text.

        Args:
            ids: any ids; unknown ones stand for nothing.
            skip_special: leave out special tokens; otherwise they appear as written.
            continuation: the ids continue an earlier text, so a leading space is theirs and stays.
        """
        data = b"".join([self.visible_bytes(id_, skip_special=skip_special) for id_ in ids])
        if self.strips_leading_space and not continuation:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes a token stands for, special tokens as written; b"" for an id without a token."""
        data = self._bytes_of.get(token_id)
        if data is None:
            data = self._find_bytes(token_id)
            if 0 <= token_id < self._spec.vocab_size:
                self._bytes_of[token_id] = data
        return data

    def visible_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """Bytes a token adds to decoded text: none for a special token that is skipped."""
        if skip_special and token_id in self._spec.special:
            return b""
        return self.token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        """Whether decoded text leaves this token out."""
        return token_id in self._spec.special

    def _find_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self._spec.vocab_size:
            return b""
        text = self._spec.verbatim.get(token_id)
        if text is not None:
            return text.encode()
        piece = self._backend.id_to_token(token_id)
        return b"" if piece is None else self._spec.piece_bytes(piece)
