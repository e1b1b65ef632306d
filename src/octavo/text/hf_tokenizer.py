"""A tokenizer from the files next to safetensors weights.

``tokenizer.json`` holds the rules, ``tokenizer_config.json`` (or ``special_tokens_map.json``) the roles of
special tokens, ``generation_config.json`` and ``config.json`` the end tokens.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.core.errors import CorruptModel, UnsupportedModel
from octavo.text.end_tokens import find_end_tokens
from octavo.text.pieces import PieceBytes, byte_level_bytes, marked_bytes, sentencepiece_bytes
from octavo.text.tokenizer import Tokenizer, TokenizerSpec


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
        CorruptModel: the file is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CorruptModel(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise CorruptModel(f"{path} holds a {type(value).__name__}, expected an object")
    return value


def named_special_tokens(directory: Path) -> dict[str, str]:
    """Special tokens by role (``bos_token``, ``eos_token``, ...), as text."""
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for role, value in read_json(directory / file).items():
            text = value.get("content") if isinstance(value, dict) else value
            if role.endswith("_token") and isinstance(text, str):
                named[role] = text
    return named


def build_hf_tokenizer(
    directory: Path, model_config: Mapping[str, object], templates: Sequence[str] = ()
) -> Tokenizer:
    """Load the tokenizer of a model directory.

    Args:
        directory: where ``tokenizer.json`` is.
        model_config: the parsed ``config.json``.
        templates: sources of the model's chat templates, which tell end-of-turn tokens.

    Raises:
        UnsupportedModel: there is no ``tokenizer.json``, or its decoder is of a kind that is not known.
        CorruptModel: a file is damaged, or the files contradict each other.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{directory} has no tokenizer.json; save the tokenizer again with transformers' save_pretrained"
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise CorruptModel(f"cannot read {path}: {error}") from error
    _add_declared_tokens(backend, read_json(directory / "tokenizer_config.json").get("added_tokens_decoder"))

    named = named_special_tokens(directory)
    bos = backend.token_to_id(named["bos_token"]) if "bos_token" in named else None
    eos = backend.token_to_id(named["eos_token"]) if "eos_token" in named else None
    generation = read_json(directory / "generation_config.json").get("eos_token_id")
    declared = generation if generation is not None else model_config.get("eos_token_id")
    end_tokens = find_end_tokens([eos, *_as_ids(declared)], backend.token_to_id, templates)

    added = backend.get_added_tokens_decoder()
    piece_bytes, strip_leading_space = _read_decoder(backend)
    return Tokenizer(
        backend,
        TokenizerSpec(
            vocab_size=max(backend.get_vocab_size(with_added_tokens=False), *(id_ + 1 for id_ in added), 0),
            piece_bytes=piece_bytes,
            verbatim={id_: token.content for id_, token in added.items()},
            special=frozenset(end_tokens) | {id_ for id_, token in added.items() if token.special},
            bos_token_id=bos,
            prefix=_find_prefix(backend),
            eos_token_ids=end_tokens,
            strip_leading_space=strip_leading_space,
        ),
    )


def _as_ids(value: object) -> Iterable[int]:
    if isinstance(value, int):
        return [value]
    return [id_ for id_ in value if isinstance(id_, int)] if isinstance(value, list) else []


def _add_declared_tokens(backend: Backend, declared: object) -> None:
    # Tokens that only tokenizer_config.json knows: added to the model after its tokenizer.json was written.
    if not isinstance(declared, dict):
        return
    for id_, entry in sorted(declared.items(), key=lambda item: int(item[0])):
        if backend.token_to_id(entry["content"]) is not None:
            continue
        backend.add_tokens([AddedToken(**{k: v for k, v in entry.items() if k != "__type"})])
        if backend.token_to_id(entry["content"]) != int(id_):
            raise CorruptModel(
                f"tokenizer_config.json gives {entry['content']!r} the id {id_}, but the next one free in "
                f"tokenizer.json is {backend.token_to_id(entry['content'])}"
            )


def _find_prefix(backend: Backend) -> tuple[int, ...]:
    # What the post-processor in tokenizer.json puts in front of a text. As in transformers, add_bos_token in
    # tokenizer_config.json has no say where there is a tokenizer.json.
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    start = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0)
    return tuple(full[:start])


def _read_decoder(backend: Backend) -> tuple[PieceBytes, bool]:
    """How pieces spell bytes, and whether decoding takes a leading space away."""
    # A component's state is its part of tokenizer.json.
    steps = _flatten(json.loads(backend.decoder.__getstate__())) if backend.decoder else []
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level_bytes, False
    if kinds == ["Metaspace"]:
        return marked_bytes, steps[0].get("prepend_scheme", "always") != "never"
    if "Replace" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        strips = any(step.get("start") for step in steps if step["type"] == "Strip")
        return (sentencepiece_bytes if "ByteFallback" in kinds else marked_bytes), strips
    raise UnsupportedModel(
        f"the decoder {'+'.join(map(str, kinds)) or None} (tokenizer.json) is not supported; ByteLevel, "
        "Metaspace and SentencePiece's Replace with ByteFallback, Fuse and Strip are"
    )


def _flatten(decoder: object) -> list[dict[str, object]]:
    if not isinstance(decoder, dict):
        return []
    nested = decoder.get("decoders")
    if isinstance(nested, list):
        return [step for inner in nested for step in _flatten(inner)]
    return [decoder]
