"""Models as Hugging Face keeps them: config.json and one or more safetensors files, memory-mapped.

A safetensors file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes.
The header is parsed here because the format's own NumPy interface has no bfloat16. The checks are those of
the format's reference implementation: every byte belongs to exactly one tensor.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Never, TypeGuard

import numpy as np

from octavo.core.errors import CorruptModel, ModelNotFound, UnsupportedModel
from octavo.weights.checkpoint import Checkpoint, LazyTensors, StoredTensor, as_weight, map_file
from octavo.weights.tensor import Encoding, WeightTensor

INDEX_NAME = "model.safetensors.index.json"

_MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 8
_DTYPE_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_SUPPORTED: dict[str, Encoding] = {"F32": "F32", "F16": "F16", "BF16": "BF16"}


def open_safetensors(directory: Path) -> Checkpoint:
    """Open the model in ``directory``: config.json, and the safetensors file or the shards its index names.

    The first byte of a tensor may lie at any address: nothing in the format aligns it.

    Raises:
        ModelNotFound: a file that must be there is not.
        CorruptModel: a file is truncated or inconsistent, or lacks a shard or tensor that the index names.
    """
    metadata = _read_json(directory / "config.json")
    index_path = directory / INDEX_NAME
    if index_path.is_file():
        stored = _open_shards(directory, _read_json(index_path))
    else:
        stored = _open_file(_single_file(directory))
    return Checkpoint(directory, "safetensors", metadata, LazyTensors(stored, _build), stored)


def _single_file(directory: Path) -> Path:
    files = sorted(directory.glob("*.safetensors"))
    named = directory / "model.safetensors"
    if named in files:
        return named
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise ModelNotFound(
            f"{directory} needs model.safetensors or {INDEX_NAME}; safetensors files found: {found}"
        )
    return files[0]


def _open_shards(directory: Path, index: Mapping[str, object]) -> dict[str, StoredTensor]:
    weight_map = index.get("weight_map")
    index_path = directory / INDEX_NAME
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CorruptModel(f"{index_path}: weight_map must map tensor names to file names")
    shards: dict[str, dict[str, StoredTensor]] = {}
    for shard in sorted(set(weight_map.values())):
        # Lexically only: in the hub's cache the shards are links to files elsewhere, and that is fine.
        if PurePosixPath(shard).is_absolute() or ".." in PurePosixPath(shard).parts or "\\" in shard:
            raise CorruptModel(f"{index_path}: shard {shard!r} lies outside the model's directory")
        try:
            shards[shard] = _open_file(directory / shard)
        except ModelNotFound as error:
            raise CorruptModel(
                f"{index_path} names shard {shard!r}, but {error}; fetch the model again"
            ) from error
    stored = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise CorruptModel(f"{index_path} places tensor {name!r} in {shard}, which does not have it")
        stored[name] = shards[shard][name]
    return stored


def _open_file(path: Path) -> dict[str, StoredTensor]:
    buffer = map_file(path)
    if len(buffer) < 8:
        _fail(path, f"the file is only {len(buffer)} bytes long")
    header_bytes = int.from_bytes(buffer[:8], "little")
    data_start = 8 + header_bytes
    if header_bytes > _MAX_HEADER_BYTES or data_start > len(buffer):
        _fail(
            path,
            f"the header is said to be {header_bytes:,} bytes long; the file has {len(buffer):,} "
            f"and the limit is {_MAX_HEADER_BYTES:,}",
        )
    header = _parse_json(path, buffer[8:data_start])
    header.pop("__metadata__", None)
    data = np.frombuffer(buffer, np.uint8)[data_start:]
    spans = sorted(_read_entry(path, name, entry) for name, entry in header.items())
    stored = {}
    previous_stop, previous_name = 0, "the header"
    for start, stop, name, dtype, shape in spans:
        if stop > data.size:
            _fail(path, f"tensor {name!r} ends at byte {stop:,} of the data, which has {data.size:,}")
        if start != previous_stop:
            relation = "overlaps" if start < previous_stop else "leaves a gap after"
            _fail(
                path,
                f"tensor {name!r} at byte {start:,} {relation} {previous_name!r}, which ends at "
                f"{previous_stop:,}",
            )
        previous_stop, previous_name = stop, name
        stored[name] = StoredTensor(dtype, shape, data[start:stop])
    if previous_stop != data.size:
        _fail(path, f"the tensors end at byte {previous_stop:,} of the data, which has {data.size:,}")
    return stored


def _read_entry(path: Path, name: str, entry: object) -> tuple[int, int, str, str, tuple[int, ...]]:
    """Check one tensor's description by itself; return (start, stop, name, dtype, shape)."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        _fail(path, f"the description of tensor {name!r} is malformed: {str(entry)[:200]}")
    start, stop = offsets
    if stop < start:
        _fail(path, f"tensor {name!r} ends at byte {stop:,}, before its start at {start:,}")
    num_bits = _DTYPE_BITS.get(dtype)
    if num_bits is not None and prod(shape) * num_bits != (stop - start) * 8:
        _fail(
            path, f"tensor {name!r} ({dtype}, shape {tuple(shape)}) does not fill its {stop - start:,} bytes"
        )
    return start, stop, name, dtype, tuple(shape)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    # type() and not isinstance(): true and false are no sizes.
    return (
        isinstance(value, list)
        and len(value) <= _MAX_DIMENSIONS
        and all(type(size) is int and 0 <= size < 1 << 63 for size in value)
    )


def _build(name: str, stored: StoredTensor) -> WeightTensor:
    if stored.type_name not in _SUPPORTED:
        raise UnsupportedModel(
            f"tensor {name!r} has dtype {stored.type_name}; Octavo reads {', '.join(_SUPPORTED)} "
            "from safetensors files"
        )
    if 0 in stored.shape:
        raise UnsupportedModel(f"tensor {name!r} of shape {stored.shape} holds no values")
    return as_weight(name, _SUPPORTED[stored.type_name], stored.shape, stored.data)


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelNotFound(f"cannot open {path}: {error.strerror}") from error
    return _parse_json(path, content)


def _parse_json(path: Path, content: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(content, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CorruptModel(f"{path}: not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CorruptModel(f"{path}: expected a JSON object, found {type(parsed).__name__}")
    return parsed


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} appears twice")
    return result


def _fail(path: Path, problem: str) -> Never:
    raise CorruptModel(f"{path}: {problem}; the file is damaged or not a safetensors file, fetch it again")
