"""Streamed text equals whole text, and is never half a character."""

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_helpers import SAMPLES, known_text

from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.gguf_tokenizer import GGUFVocabulary, build_gguf_tokenizer
from octavo.text.loading import load_text
from octavo.text.pieces import CHAR_OF
from octavo.text.tokenizer import Tokenizer
from octavo.weights.gguf import open_gguf

WORDS = ["the", "Ġthe", "æĹ¥", "æĹ", "¥æľ", "ðŁĺ", "Ģ", "ĠðŁ", "Ċ", "âĢ", "į"]
PIECES = ["\u2581", "\u2581a", "a", "\u2581the", "日", "\u2581\u2581", "<", "b"]


def byte_level() -> Tokenizer:
    """Every byte, some parts of characters, a control and a user-defined token."""
    tokens = [*CHAR_OF.values(), *WORDS, "<|end|>", "<think>", "[PAD]"]
    tokens = list(dict.fromkeys(tokens))
    types = [1] * (len(tokens) - 3) + [3, 4, 5]
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": []}
    return build_gguf_tokenizer(GGUFVocabulary({f"tokenizer.ggml.{k}": v for k, v in values.items()}))


def sentencepiece() -> Tokenizer:
    """Byte pieces, pieces with spaces, and the space in front of every text."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "[TOOL]"]
    types = [2, 3, 3] + [6] * 256 + [1] * len(PIECES) + [4]
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": [-float(i) for i in range(len(tokens))],
    }
    return build_gguf_tokenizer(GGUFVocabulary({f"tokenizer.ggml.{k}": v for k, v in values.items()}))


TOKENIZERS = {"byte-level": byte_level(), "sentencepiece": sentencepiece()}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request) -> Tokenizer:
    return TOKENIZERS[request.param]


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> tuple[list[str], str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [detokenizer.push(id_) for id_ in ids], detokenizer.flush()


@st.composite
def ids_of(draw, tokenizer: Tokenizer) -> list[int]:
    """Ids of texts, cut and mixed with arbitrary ids, some of them without a token."""
    any_id = st.integers(-1, tokenizer.vocab_size + 1)
    last = st.integers(max(0, tokenizer.vocab_size - 20), tokenizer.vocab_size - 1)
    parts = draw(st.lists(st.one_of(any_id, last, known_text), max_size=12))
    ids: list[int] = []
    for part in parts:
        ids += (
            tokenizer.encode(part, add_bos=False)[: draw(st.integers(0, 30))]
            if isinstance(part, str)
            else [part]
        )
    return ids


both = st.sampled_from([True, False])


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=300)
@given(data=st.data(), skip=both, continuation=both)
def test_streamed_text_is_the_whole_text(name, data, skip, continuation):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(ids_of(tokenizer))
    pushed, rest = stream(tokenizer, ids, skip_special=skip, continuation=continuation)
    assert "".join(pushed) + rest == tokenizer.decode(ids, skip_special=skip, continuation=continuation)


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> Tokenizer:
    return load_text(open_gguf(smollm2_path))[0]


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, 49151), max_size=60), skip=both)
def test_streamed_text_is_the_whole_text_of_a_real_model(smollm2, ids, skip):
    pushed, rest = stream(smollm2, ids, skip_special=skip)
    assert "".join(pushed) + rest == smollm2.decode(ids, skip_special=skip)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=200)
@given(data=st.data())
def test_text_comes_as_soon_as_it_can_and_no_sooner(name, data):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(ids_of(tokenizer))
    pushed, rest = stream(tokenizer, ids, continuation=True)
    seen = b""
    for i, id_ in enumerate(ids):
        seen += tokenizer.visible_bytes(id_)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        settled = decoder.decode(seen)
        assert "".join(pushed[: i + 1]) == settled
        held_back = decoder.getstate()[0]
        assert len(held_back) < 4
        # What is held back can still become a character; or is half of a surrogate, which Python's decoder
        # rules out one byte later than it could.
        assert not held_back or can_complete(held_back) or is_half_surrogate(held_back)
    assert len(rest) <= 1


def is_half_surrogate(start: bytes) -> bool:
    return len(start) == 2 and start[0] == 0xED and start[1] >= 0xA0


def test_half_a_surrogate_is_told_with_the_next_byte():
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    assert decoder.decode(b"\xed\xa1") == ""
    assert decoder.decode(b"a") == "\ufffd\ufffda"


def can_complete(start: bytes) -> bool:
    """Whether some bytes after these make a character."""
    for num_bytes in (1, 2, 3):
        for byte in range(0x80, 0xC0):
            try:
                (start + bytes([byte]) + b"\x80" * (num_bytes - 1)).decode()
            except UnicodeDecodeError:
                continue
            return True
    return False


@given(text=known_text)
def test_valid_text_has_no_replacement_character(text):
    for tokenizer in TOKENIZERS.values():
        text = text.replace("\ufffd", "")
        pushed, rest = stream(tokenizer, tokenizer.encode(text, add_bos=False))
        assert "\ufffd" not in "".join(pushed)
        assert rest == ""


def test_samples_round_trip(tokenizer):
    for text in SAMPLES:
        if "<s>" in text or "[TOOL]" in text:
            continue
        ids = tokenizer.encode(text, add_bos=False)
        pushed, rest = stream(tokenizer, ids, skip_special=False)
        assert "".join(pushed) + rest == text


def test_bytes_of_one_character_wait():
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("x😀y")
    assert len(ids) == 6
    assert stream(tokenizer, ids) == (["x", "", "", "", "😀", "y"], "")
    assert stream(tokenizer, ids[:3]) == (["x", "", ""], "\ufffd")
    # The sequence can no longer become a character once a letter follows.
    assert stream(tokenizer, [ids[1], ids[2], ids[5]]) == (["", "", "\ufffdy"], "")


def test_skipped_tokens_do_not_split_a_character():
    tokenizer = TOKENIZERS["byte-level"]
    (end,) = tokenizer.encode("<|end|>")
    first, second = tokenizer.encode("é")
    assert stream(tokenizer, [first, end, second]) == (["", "", "é"], "")
    assert stream(tokenizer, [first, end, second], skip_special=False) == (
        ["", "\ufffd<|end|>", "\ufffd"],
        "",
    )


def test_leading_space_of_sentencepiece():
    tokenizer = TOKENIZERS["sentencepiece"]
    space, space_a, bos, space_byte = 259, 260, 1, 3 + 0x20
    assert stream(tokenizer, [space_a, space_a]) == (["a", " a"], "")
    assert stream(tokenizer, [bos, space_a]) == (["", "a"], "")
    assert stream(tokenizer, [space, space_a]) == (["", " a"], "")
    assert stream(tokenizer, [space_byte, space_a]) == (["", " a"], "")
    assert stream(tokenizer, [space_a], continuation=True) == ([" a"], "")
    assert stream(tokenizer, [bos, space_a], skip_special=False) == (["<s>", " a"], "")


def test_one_tokens_text_stands_alone(tokenizer):
    detokenizer = IncrementalDetokenizer(tokenizer, continuation=True)
    for token_id in range(-1, tokenizer.vocab_size + 2):
        text = detokenizer.token_text(token_id)
        assert text == tokenizer.token_bytes(token_id).decode(errors="replace")
    assert detokenizer.push(tokenizer.encode("a")[-1]) in ("a", " a")  # asking has changed nothing
