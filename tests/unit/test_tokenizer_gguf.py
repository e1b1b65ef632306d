"""Tokenizers rebuilt from GGUF metadata, against the models' own files and against independent oracles."""

import io
import json
import random
from collections.abc import Callable

import pytest
import regex
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from text_helpers import (
    CONTRACTIONS,
    FRAGMENTS,
    GPT2_CUTS,
    KNOWN_CHARS,
    SAMPLES,
    OracleBPE,
    OracleSentencePiece,
    differing,
    gguf_metadata,
    known_text,
    train_byte_level,
    training_corpus,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from octavo.core.errors import CorruptModel, UnsupportedModel
from octavo.text.gguf_tokenizer import GGUFVocabulary, build_gguf_tokenizer
from octavo.text.loading import load_text
from octavo.text.pretokenizers import DIGIT, PRE_TOKENIZERS
from octavo.text.tokenizer import Tokenizer
from octavo.weights.gguf import open_gguf

# Written out again from llama.cpp's vocabulary source, for a regex library other than the product's.
LLAMA3_CUTS = [
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
]
QWEN2_CUTS = [
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
]
CUTS = {
    "gpt-2": GPT2_CUTS,
    "smollm": [r"\p{N}", *GPT2_CUTS],
    "llama-bpe": LLAMA3_CUTS,
    "qwen2": QWEN2_CUTS,
    "deepseek-r1-qwen": QWEN2_CUTS,
    "default": [r"[\p{P}\$\+<=>\^~\|]+", *GPT2_CUTS, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}


def build(metadata: dict[str, object], *templates: str) -> Tokenizer:
    return build_gguf_tokenizer(GGUFVocabulary(metadata), templates)


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> tuple[Tokenizer, dict[str, object]]:
    checkpoint = open_gguf(smollm2_path)
    tokenizer, template = load_text(checkpoint)
    assert template is not None
    return tokenizer, checkpoint.metadata


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2) -> OracleBPE:
    metadata = smollm2[1]
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    return OracleBPE(tokens, merges, CUTS["smollm"])


@pytest.fixture(scope="module")
def smollm2_transformers(smollm2_path) -> Callable[[str], list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


class TestSmolLM2:
    def test_what_the_file_says(self, smollm2):
        tokenizer, _ = smollm2
        assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.adds_bos) == (49152, 1, False)
        assert tokenizer.eos_token_ids == (2, 0)
        assert tokenizer.token_bytes(1) == b"<|im_start|>"
        assert tokenizer.encode("<|im_start|>user") == [1, 4093]

    def test_equals_the_oracle_on_samples(self, smollm2, smollm2_oracle):
        def plain(text: str) -> list[int]:
            return smollm2[0].encode(text, parse_special=False)

        assert differing(SAMPLES, plain, smollm2_oracle.encode) == []

    @settings(max_examples=300)
    @given(text=known_text)
    def test_equals_the_oracle(self, smollm2, smollm2_oracle, text):
        assert smollm2[0].encode(text, parse_special=False) == smollm2_oracle.encode(text)

    def test_equals_transformers_where_it_cuts_alike(self, smollm2, smollm2_transformers):
        """transformers ignores this file's pre-tokenizer, which cuts off every digit before anything else.

        It shows where a number follows two spaces, or is written in digits beyond ASCII after a space or
        another number. The oracle above covers those.
        """
        cut_differently = r"\s\s\p{N}|[\s\p{N}](?![0-9])\p{N}"
        rng = random.Random(3)
        either = (KNOWN_CHARS, FRAGMENTS)
        random_texts = ["".join(rng.choice(rng.choice(either)) for _ in range(25)) for _ in range(400)]
        texts = [text for text in SAMPLES + random_texts if not regex.search(cut_differently, text)]
        assert len(texts) > 200
        assert differing(texts, smollm2[0].encode, smollm2_transformers) == []
        assert smollm2[0].encode("x  42") != smollm2_transformers("x  42")

    @settings(max_examples=200)
    @given(text=known_text)
    def test_round_trip(self, smollm2, text):
        tokenizer, _ = smollm2
        spelled = text.translate(dict.fromkeys(map(ord, "\x04\x06\x13\x14\x16\x1d")))
        ids = tokenizer.encode(spelled, parse_special=False)
        assert tokenizer.decode(ids) == spelled
        assert b"".join(map(tokenizer.token_bytes, ids)) == spelled.encode()

    def test_what_the_vocabulary_cannot_spell_is_dropped(self, smollm2, smollm2_transformers):
        """The model has no token for these bytes; transformers drops them too."""
        for text in ("a\x04b", "\x06\x13\x14\x16\x1d", "x\U000f0000y"):
            assert smollm2[0].encode(text) == smollm2_transformers(text)
        assert smollm2[0].decode(smollm2[0].encode("a\x04b")) == "ab"

    def test_every_token_has_its_bytes(self, smollm2):
        tokenizer, metadata = smollm2
        pieces = [tokenizer.token_bytes(id_) for id_ in range(tokenizer.vocab_size)]
        assert all(pieces)
        assert len(set(pieces)) == len(pieces)
        assert tokenizer.token_bytes(metadata["tokenizer.ggml.tokens"].index("Ġthe")) == b" the"


@pytest.fixture(scope="module", params=CUTS)
def pair(request):
    rule = PRE_TOKENIZERS[request.param]
    patterns = [r"\p{N}" if pattern == DIGIT else pattern for pattern in rule.patterns]
    trained = train_byte_level(patterns, nfc=rule.nfc, ignore_merges=rule.ignore_merges)
    metadata = gguf_metadata(json.loads(trained.to_str()), request.param, bos_token_id=0)
    rebuilt = build(metadata)
    oracle = OracleBPE(
        metadata["tokenizer.ggml.tokens"],
        metadata["tokenizer.ggml.merges"],
        CUTS[request.param],
        whole_words=rule.ignore_merges,
    )
    return rebuilt, PreTrainedTokenizerFast(tokenizer_object=trained), oracle, rule


class TestNamedPreTokenizers:
    """Small tokenizers trained with each family's expressions, as tokenizer.json and as GGUF keys."""

    def test_table_and_tests_cover_the_same_rules(self):
        tested = {PRE_TOKENIZERS[name] for name in CUTS}
        assert tested == set(PRE_TOKENIZERS.values())

    @settings(max_examples=100)
    @given(text=known_text)
    def test_equals_transformers_and_the_oracle(self, pair, text):
        rebuilt, original, oracle, rule = pair
        ids = rebuilt.encode(text, add_bos=False)
        assert ids == original.encode(text, add_special_tokens=False)
        if not rule.nfc:
            assert ids == oracle.encode(text)
            assert rebuilt.decode(ids) == text

    def test_equals_transformers_on_samples(self, pair):
        rebuilt, original, _, _ = pair

        def ours(text: str) -> list[int]:
            return rebuilt.encode(text, add_bos=False)

        assert differing(SAMPLES + training_corpus(), ours, original.encode) == []

    def test_bos_by_default(self, pair):
        rebuilt, _, _, rule = pair
        assert rebuilt.adds_bos == rule.add_bos


class TestMetadata:
    @pytest.fixture
    def metadata(self):
        trained = train_byte_level(
            GPT2_CUTS, special=["<bos>", "<eos>"], plain=["<tool>", "  two"], vocab_size=300
        )
        return gguf_metadata(json.loads(trained.to_str()), "gpt-2", bos_token_id=300, eos_token_id=301)

    @pytest.mark.parametrize(
        ("change", "error", "names"),
        [
            ({"pre": "klingon-bpe"}, UnsupportedModel, "klingon-bpe"),
            ({"pre": None}, UnsupportedModel, "tokenizer.ggml.pre"),
            ({"model": "rwkv"}, UnsupportedModel, "rwkv"),
            ({"tokens": None}, CorruptModel, "tokenizer.ggml.tokens"),
            ({"tokens": ["a", "b", "a"]}, CorruptModel, "token"),
            ({"tokens": [1, 2]}, CorruptModel, "tokenizer.ggml.tokens"),
            ({"token_type": [1]}, CorruptModel, "token_type"),
            ({"merges": ["ab"]}, CorruptModel, "'ab'"),
            ({"merges": ["Ġ missing"]}, CorruptModel, "merges"),
            ({"bos_token_id": 10**6}, CorruptModel, "bos_token_id is 1000000"),
            ({"bos_token_id": "x"}, CorruptModel, "bos_token_id is 'x'"),
            ({"bos_token_id": None, "add_bos_token": True}, CorruptModel, "bos_token_id"),
        ],
    )
    def test_what_is_wrong_is_named(self, metadata, change, error, names):
        changed = {f"tokenizer.ggml.{key}": value for key, value in change.items()}
        metadata = {key: value for key, value in (metadata | changed).items() if value is not None}
        with pytest.raises(error) as caught:
            build(metadata)
        assert names in str(caught.value)

    def test_duplicate_token(self, metadata):
        metadata["tokenizer.ggml.tokens"][7] = metadata["tokenizer.ggml.tokens"][9]
        with pytest.raises(CorruptModel, match="twice"):
            build(metadata)

    def test_token_types(self, metadata):
        tokenizer = build(metadata)
        text = "<tool>a  two<eos>"
        ids = tokenizer.encode(text)
        assert [id_ for id_ in ids if id_ >= 300] == [302, 303, 301]
        assert tokenizer.decode(ids) == "<tool>a  two"
        assert tokenizer.decode(ids, skip_special=False) == text
        plain = tokenizer.encode(text, parse_special=False)
        assert [id_ for id_ in plain if id_ >= 300] == [302, 303]
        assert tokenizer.decode(plain) == text

    def test_end_tokens_count_as_special_whatever_their_type(self, metadata):
        metadata["tokenizer.ggml.token_type"][301] = 4
        tokenizer = build(metadata)
        assert tokenizer.eos_token_ids == (301,)
        assert tokenizer.decode(tokenizer.encode("a<eos>")) == "a"

    def test_end_of_turn_comes_from_the_keys_and_the_template(self, metadata):
        tokens = metadata["tokenizer.ggml.tokens"] + ["<|im_end|>", "<|eot_id|>", "<|endoftext|>"]
        types = metadata["tokenizer.ggml.token_type"] + [3, 3, 3]
        metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
        assert build(metadata).eos_token_ids == (301, 306)
        assert build(metadata, "a{{ x }}<|im_end|>").eos_token_ids == (301, 304, 306)
        assert build(metadata | {"tokenizer.ggml.eot_token_id": 305}).eos_token_ids == (301, 305, 306)

    def test_padding_tokens_stand_for_nothing(self, metadata):
        metadata["tokenizer.ggml.tokens"] += ["[PAD304]", ""]
        metadata["tokenizer.ggml.token_type"] += [5, 5]
        tokenizer = build(metadata)
        assert tokenizer.vocab_size == 306
        assert tokenizer.decode([304, 305]) == ""
        assert 304 not in tokenizer.encode("[PAD304]")


def train_sentencepiece(seed: int, alphabet: str, vocab_size: int) -> sentencepiece.SentencePieceProcessor:
    rng = random.Random(seed)
    lines = [
        "".join(c * rng.choice([1, 1, 1, 2, 5]) for c in rng.choices(alphabet, k=60)) for _ in range(200)
    ]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_metadata(model: sentencepiece.SentencePieceProcessor, **keys: object) -> dict[str, object]:
    ids = range(model.vocab_size())
    kind = {id_: 2 for id_ in ids if model.is_unknown(id_)} | {id_: 3 for id_ in ids if model.is_control(id_)}
    kind |= {id_: 6 for id_ in ids if model.is_byte(id_)}
    values = {
        "model": "llama",
        "tokens": [model.id_to_piece(id_) for id_ in ids],
        "scores": [model.get_score(id_) for id_ in ids],
        "token_type": [kind.get(id_, 1) for id_ in ids],
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


ALPHABETS = ("ab ", "abc  é", "a= -", "日本 語a")


@pytest.fixture(scope="module", params=range(len(ALPHABETS)))
def model(request):
    alphabet = ALPHABETS[request.param]
    return alphabet, train_sentencepiece(request.param, alphabet, vocab_size=310)


class TestSentencePiece:
    def test_equals_sentencepiece(self, model):
        alphabet, processor = model
        tokenizer = build(sentencepiece_metadata(processor))
        rng = random.Random(1)
        texts = [
            "".join(c * rng.choice([1, 1, 2, 7]) for c in rng.choices(alphabet, k=30)) for _ in range(1500)
        ]
        texts = [text for text in texts + SAMPLES if text and not regex.search(r"<s>|</s>|<unk>", text)]

        def ours(text: str) -> list[int]:
            return tokenizer.encode(text, add_bos=False)

        assert differing(texts, ours, processor.encode) == []
        assert [tokenizer.decode(ours(text)) for text in texts] == texts

    @settings(max_examples=200)
    @given(text=st.text(st.sampled_from("ab "), min_size=1, max_size=60))
    def test_runs_of_spaces_with_equal_scores(self, text):
        metadata = self.spaces_metadata(sizes=[2, 3, 4, 5, 6, 8, 14, 16])
        tokenizer = build(metadata | {"tokenizer.ggml.add_space_prefix": False})
        keys = ("tokens", "scores", "token_type")
        oracle = OracleSentencePiece(*(metadata[f"tokenizer.ggml.{key}"] for key in keys))
        assert tokenizer.encode(text, add_bos=False) == oracle.encode(text)

    @staticmethod
    def spaces_metadata(sizes: list[int]) -> dict[str, object]:
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        runs = ["\u2581" * size for size in sizes]
        tokens = ["<unk>", "<s>", "</s>", *bytes_, *runs, "\u2581a", "ab", "\u2581", "a", "b"]
        scores = [0.0] * 259 + [-1e9] * len(runs) + [-1.0, -2.0, -1e9, -4.0, -5.0]
        types = [2, 3, 3] + [6] * 256 + [1] * (len(runs) + 5)
        values = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types}
        return {f"tokenizer.ggml.{key}": value for key, value in values.items()}

    def test_equal_scores_elsewhere_are_refused(self):
        metadata = self.spaces_metadata([2])
        metadata["tokenizer.ggml.scores"] = [-1.0] * len(metadata["tokenizer.ggml.tokens"])
        with pytest.raises(UnsupportedModel, match="same score"):
            build(metadata)

    @pytest.mark.parametrize("key", ["precompiled_charsmap", "remove_extra_whitespaces"])
    def test_normalizers_are_refused(self, key):
        with pytest.raises(UnsupportedModel, match=key):
            build(self.spaces_metadata([2]) | {f"tokenizer.ggml.{key}": [1, 2] if "char" in key else True})

    def test_special_tokens_bos_and_spaces(self):
        tokenizer = build(self.spaces_metadata([2]))
        space_a, a, space = 260, 263, 262
        assert tokenizer.encode("a") == [1, space_a]
        assert tokenizer.encode("<s>a") == [1, space_a]
        assert tokenizer.encode("a</s>a", add_bos=False) == [space_a, 2, space_a]
        assert tokenizer.encode("", add_bos=True) == [1]
        assert tokenizer.eos_token_ids == (2,)
        assert tokenizer.decode([1, space_a, space, a]) == "a a"
        assert tokenizer.decode([space_a], continuation=True) == " a"
        assert tokenizer.decode([1, space_a], skip_special=False) == "<s> a"
        assert tokenizer.encode("é", add_bos=False) == [space, 3 + 0xC3, 3 + 0xA9]
        assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"
        unprefixed = build(self.spaces_metadata([2]) | {"tokenizer.ggml.add_space_prefix": False})
        assert unprefixed.encode("a", add_bos=False) == [a]
        assert unprefixed.decode([space_a]) == " a"
