"""A tokenizer rebuilt from the metadata of a GGUF file.

Two of the format's tokenizer models are supported. ``gpt2`` is byte-level BPE with a named pre-tokenizer.
``llama`` is SentencePiece BPE: the file has a score for each piece instead of merges, and the merges follow
from the scores.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Backend

from octavo.core.errors import CorruptModel, UnsupportedModel
from octavo.text.end_tokens import find_end_tokens
from octavo.text.pieces import SPACE_MARK, byte_level_bytes, sentencepiece_bytes
from octavo.text.pretokenizers import find_pre_tokenizer
from octavo.text.tokenizer import Tokenizer, TokenizerSpec

T = TypeVar("T")

# Ids that hold for "llama" if the file does not say.
_LLAMA_IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class GGUFVocabulary:
    """The tokenizer keys of a GGUF file's metadata, checked as they are read.

    Attributes:
        model: ``tokenizer.ggml.model``.
        tokens: text of every token, by id.
        types: their TokenType values.
        id_of: ids by text.

    Raises:
        CorruptModel: a key has the wrong type or length, an id is out of range, a token occurs twice.
    """

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.model = self.get("model", str, "")
        self.tokens: Sequence[str] = self._get_array("tokens", str)
        self.types: Sequence[int] = self._get_array("token_type", int, [TokenType.NORMAL] * len(self.tokens))
        self.id_of = {text: id_ for id_, text in enumerate(self.tokens) if text}
        if len(self.types) != len(self.tokens):
            raise CorruptModel(
                f"tokenizer.ggml.token_type has {len(self.types)} entries for {len(self.tokens)} tokens"
            )
        if len(self.id_of) != sum(map(bool, self.tokens)):
            twice = next(text for id_, text in enumerate(self.tokens) if text and self.id_of[text] != id_)
            raise CorruptModel(
                f"tokenizer.ggml.tokens has {twice!r} twice, the second time at {self.id_of[twice]}"
            )

    def get(self, key: str, type_: type[T], default: T) -> T:
        """Value of ``tokenizer.ggml.<key>``, or the default if there is none."""
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, type_):
            raise CorruptModel(f"tokenizer.ggml.{key} is {value!r}, expected {type_.__name__}")
        return value

    def get_token(self, key: str) -> int | None:
        """The token id a key holds, or None."""
        default = _LLAMA_IDS.get(key) if self.model == "llama" else None
        id_ = self.get(key, int, -1 if default is None or default >= len(self.tokens) else default)
        if id_ >= len(self.tokens):
            raise CorruptModel(f"tokenizer.ggml.{key} is {id_}, but there are {len(self.tokens)} tokens")
        return None if id_ < 0 else id_

    def get_merges(self) -> list[tuple[str, str]]:
        """The merges in order of priority, each once."""
        pairs = []
        for merge in dict.fromkeys(self._get_array("merges", str)):
            left, separator, right = merge[1:].partition(" ")  # the first character may be anything
            if not separator:
                raise CorruptModel(f"tokenizer.ggml.merges has {merge!r}, expected two pieces and a space")
            pairs.append((merge[0] + left, right))
        return pairs

    def get_scores(self) -> Sequence[float]:
        """A score for every token."""
        scores = self._get_array("scores", (float, int))
        if len(scores) != len(self.tokens):
            raise CorruptModel(
                f"tokenizer.ggml.scores has {len(scores)} entries for {len(self.tokens)} tokens"
            )
        return scores

    def ids_of_type(self, *types: TokenType) -> list[int]:
        """Ids of the non-empty tokens of these types."""
        return [id_ for id_, type_ in enumerate(self.types) if type_ in types and self.tokens[id_]]

    def _get_array(
        self, key: str, type_: type[T] | tuple[type[T], ...], default: list[T] | None = None
    ) -> Sequence[T]:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if value is None:
            raise CorruptModel(
                f"the file has no tokenizer.ggml.{key}; convert the model again, with its vocabulary"
            )
        if not isinstance(value, list | tuple) or not all(isinstance(entry, type_) for entry in value):
            raise CorruptModel(f"tokenizer.ggml.{key} is not an array of the expected type")
        return value


def build_gguf_tokenizer(vocabulary: GGUFVocabulary, templates: Sequence[str] = ()) -> Tokenizer:
    """Rebuild the tokenizer of a GGUF file.

    Args:
        vocabulary: what the file's metadata says of it.
        templates: sources of its chat templates, which tell end-of-turn tokens.

    Raises:
        UnsupportedModel: a tokenizer model or pre-tokenizer that cannot be rebuilt exactly; it is named.
        CorruptModel: the metadata contradicts itself.
    """
    if vocabulary.model == "gpt2":
        name = vocabulary.get("pre", str, "")
        if not name:
            raise UnsupportedModel(
                "the file does not name its pre-tokenizer (tokenizer.ggml.pre), and without it the tokens of a "
                "text are not known; convert the model again with a current converter"
            )
        pre_tokenizer = find_pre_tokenizer(name)
        vocab, merges = vocabulary.id_of, vocabulary.get_merges()
        backend = Backend(_build_bpe(vocab, merges, ignore_merges=pre_tokenizer.ignore_merges))
        backend.pre_tokenizer = pre_tokenizer.build()
        if pre_tokenizer.nfc:
            backend.normalizer = normalizers.NFC()
        # add_space_prefix has no meaning here: converters write it for any model, and nothing reads it.
        return _finish(backend, vocabulary, templates, adds_bos=pre_tokenizer.add_bos)
    if vocabulary.model == "llama":
        return _build_sentencepiece(vocabulary, templates)
    raise UnsupportedModel(
        f"tokenizer model {vocabulary.model!r} (tokenizer.ggml.model) is not supported; gpt2 and llama are"
    )


def _build_sentencepiece(vocabulary: GGUFVocabulary, templates: Sequence[str]) -> Tokenizer:
    for key in ("precompiled_charsmap", "remove_extra_whitespaces"):
        if vocabulary.get(key, object, None):
            raise UnsupportedModel(f"a SentencePiece tokenizer with tokenizer.ggml.{key} is not supported")
    num_bytes = len(vocabulary.ids_of_type(TokenType.BYTE))
    if num_bytes not in (0, 256):
        raise UnsupportedModel(
            f"a SentencePiece tokenizer with {num_bytes} byte tokens; 0 or 256 are supported"
        )
    unknown = vocabulary.get_token("unknown_token_id")
    backend = Backend(
        _build_bpe(
            vocabulary.id_of,
            derive_merges(vocabulary),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=num_bytes == 256,
        )
    )
    add_space = vocabulary.get("add_space_prefix", bool, True)
    # As in llama.cpp and the original Llama files, every stretch of text between special tokens is a text of
    # its own and gets the space.
    prepend = [normalizers.Prepend(SPACE_MARK)] if add_space else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE_MARK)])
    return _finish(backend, vocabulary, templates, adds_bos=True, strip_leading_space=add_space)


def derive_merges(vocabulary: GGUFVocabulary) -> list[tuple[str, str]]:
    """Merges that make BPE join what SentencePiece joins.

    At each step SentencePiece joins the adjacent pair whose piece has the highest score, the leftmost of
    equals. So merges are ordered by score. Equal scores occur among runs of spaces (Llama and Mistral give
    all of them the same); there the leftmost run takes in its neighbours until it can grow no more, which is
    what BPE does if merges with a longer left part come first. Different pairs that make the same piece are
    put in the same order; only a text in which two of them overlap at the same moment could tell.

    Raises:
        UnsupportedModel: two other pieces share a score, so that their order is not known.
    """
    scores = vocabulary.get_scores()
    normal = {vocabulary.tokens[id_]: id_ for id_ in vocabulary.ids_of_type(TokenType.NORMAL)}
    ranked: list[tuple[float, int, str, str]] = []
    by_score: dict[float, str] = {}
    for piece, id_ in normal.items():
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [pair for pair in splits if pair[0] in normal and pair[1] in normal]
        if pairs and set(other := by_score.setdefault(scores[id_], piece)) | set(piece) != {piece[0]}:
            _check_same(other, piece, scores[id_])
        ranked += [(-scores[id_], -len(left), left, right) for left, right in pairs]
    return [(left, right) for _, _, left, right in sorted(ranked)]


def _check_same(piece: str, other: str, score: float) -> None:
    if piece != other:
        raise UnsupportedModel(
            f"a SentencePiece tokenizer whose pieces {piece!r} and {other!r} have the same score ({score}) "
            "cannot be rebuilt exactly; convert the model from its original tokenizer"
        )


def _build_bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: object) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises nothing more precise
        raise CorruptModel(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error


def _finish(
    backend: Backend,
    vocabulary: GGUFVocabulary,
    templates: Sequence[str],
    *,
    adds_bos: bool,
    strip_leading_space: bool = False,
) -> Tokenizer:
    declared = [vocabulary.get_token(f"{name}_token_id") for name in ("eos", "eot", "eom")]
    end_tokens = find_end_tokens(declared, vocabulary.id_of.get, templates)
    # End tokens are control tokens even in files that give them another type, as finetunes often do.
    special = {*vocabulary.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN), *end_tokens}
    plain = [id_ for id_ in vocabulary.ids_of_type(TokenType.USER_DEFINED) if id_ not in special]
    unused = vocabulary.ids_of_type(TokenType.UNUSED)  # padding up to the size of the model's matrices
    tokens = vocabulary.tokens
    backend.add_special_tokens(
        [AddedToken(tokens[id_], normalized=False, special=True) for id_ in sorted(special)]
    )
    backend.add_tokens([AddedToken(tokens[id_], normalized=False, special=False) for id_ in plain])
    bos = vocabulary.get_token("bos_token_id")
    adds_bos = vocabulary.get("add_bos_token", bool, adds_bos)
    if adds_bos and bos is None:
        raise CorruptModel(
            "tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id"
        )
    return Tokenizer(
        backend,
        TokenizerSpec(
            vocab_size=len(tokens),
            piece_bytes=byte_level_bytes if vocabulary.model == "gpt2" else sentencepiece_bytes,
            verbatim={id_: tokens[id_] for id_ in (*special, *plain)} | dict.fromkeys(unused, ""),
            special=frozenset(special),
            bos_token_id=bos,
            prefix=(bos,) if adds_bos and bos is not None else (),
            eos_token_ids=end_tokens,
            strip_leading_space=strip_leading_space,
        ),
    )
