"""Tokenizer and chat template of a checkpoint, whichever kind of file it came from."""

from collections.abc import Mapping
from pathlib import Path

from octavo.core.errors import CorruptModel, UnsupportedModel
from octavo.text.chat_template import ChatTemplate
from octavo.text.gguf_tokenizer import GGUFVocabulary, build_gguf_tokenizer
from octavo.text.hf_tokenizer import build_hf_tokenizer, named_special_tokens, read_json
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.sources import naming_repair

DEFAULT = "default"

# Roles of GGUF's special tokens, under the names that templates know them by.
_GGUF_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def load_text(checkpoint: Checkpoint) -> tuple[Tokenizer, ChatTemplate | None]:
    """Load the tokenizer of an opened model, and its chat template if it has one.

    A GGUF file carries both in its metadata. For safetensors they lie in the same directory, in
    ``tokenizer.json``, ``tokenizer_config.json``, ``generation_config.json``, ``chat_template.jinja`` and
    ``additional_chat_templates/*.jinja``.

    Raises:
        UnsupportedModel: a tokenizer of a kind that is not supported; it is named.
        CorruptModel: a file is damaged or contradicts another.
    """
    if checkpoint.kind == "gguf":
        with naming_repair(checkpoint.path):
            templates = _gguf_templates(checkpoint.metadata)
            vocabulary = GGUFVocabulary(checkpoint.metadata)
            tokenizer = build_gguf_tokenizer(vocabulary, tuple(templates.values()))
            special_tokens = _gguf_special_tokens(vocabulary)
    elif checkpoint.kind == "safetensors":
        directory = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
        templates = _directory_templates(directory)
        tokenizer = build_hf_tokenizer(directory, checkpoint.metadata, tuple(templates.values()))
        special_tokens = named_special_tokens(directory)
    else:
        raise UnsupportedModel(f"a checkpoint of kind {checkpoint.kind!r} has no known tokenizer")
    return tokenizer, ChatTemplate(templates, special_tokens) if templates else None


def _gguf_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    named = {k.removeprefix(f"{key}."): v for k, v in metadata.items() if k.startswith(f"{key}.")}
    named |= {DEFAULT: metadata[key]} if key in metadata else {}
    return {name: source for name, source in named.items() if isinstance(source, str)}


def _gguf_special_tokens(vocabulary: GGUFVocabulary) -> dict[str, str]:
    ids = {role: vocabulary.get_token(f"{key}_token_id") for role, key in _GGUF_ROLES.items()}
    return {role: vocabulary.tokens[id_] for role, id_ in ids.items() if id_ is not None}


def _directory_templates(directory: Path) -> dict[str, str]:
    """Templates by name; those in files of their own win over those in the tokenizer's configuration."""
    named: dict[str, str] = {}
    declared = read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(declared, str):
        named[DEFAULT] = declared
    elif isinstance(declared, list):
        try:
            named |= {entry["name"]: entry["template"] for entry in declared}
        except (KeyError, TypeError) as error:
            raise CorruptModel(
                f"chat_template in {directory}/tokenizer_config.json: expected entries with name and template"
            ) from error
    files = {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    if (default := directory / "chat_template.jinja").is_file():
        files[DEFAULT] = default
    return named | {name: path.read_text(encoding="utf-8") for name, path in files.items()}
