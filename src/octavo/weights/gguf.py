"""GGUF files: the header is parsed in one pass, the tensors stay in the memory map.

The ``gguf`` library supplies the tensor types, their block sizes, and the dequantization of those that have
no kernel here. Its reader is not used: it makes a NumPy array of every entry of the vocabulary (for 49,000
tokens about 2 s and 150 MB, against 0.05 s and 12 MB here), and reports a damaged file by whichever exception
its indexing happens to raise.

The format is described by the GGUF specification of the ggml project. Versions 2 and 3, little-endian.
"""

import mmap
import struct
from math import prod
from pathlib import Path
from typing import NamedTuple, Never, cast

import gguf
import numpy as np
import numpy.typing as npt

from octavo.core.errors import CorruptModel, UnsupportedModel
from octavo.weights.checkpoint import Checkpoint, LazyTensors, StoredTensor, as_weight, map_file
from octavo.weights.encoding import dequantize_by_library
from octavo.weights.tensor import BLOCK_OF, Encoding, WeightTensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# The fewest bytes that one item takes, which bounds a count by the bytes that are left.
_MIN_STRING_BYTES, _MIN_ARRAY_BYTES, _MIN_PAIR_BYTES, _MIN_TENSOR_BYTES = 8, 12, 13, 24
_U64 = struct.Struct("<Q")


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file: all metadata is read, the tensors are mapped and only checked to lie inside the file.

    Tensors whose type has no kernel become float32 when asked for.

    Raises:
        ModelNotFound: the file cannot be opened.
        CorruptModel: not a GGUF file, truncated, or inconsistent.
        UnsupportedModel: big-endian, another version, one part of a split model, or an unknown tensor type.
    """
    header = _Header(path, map_file(path))
    num_tensors, num_pairs = _read_start(header)
    metadata: dict[str, object] = {}
    for _ in range(header.check_count(num_pairs, _MIN_PAIR_BYTES, "metadata entries")):
        key = header.text("a metadata key")
        if key in metadata:
            header.fail(f"metadata key {key!r} appears twice")
        metadata[key] = header.value(header.number("I", f"the type of {key!r}"), key)
    if isinstance(num_parts := metadata.get("split.count"), int) and num_parts > 1:
        raise UnsupportedModel(
            f"{path} is one of {num_parts} parts of a split model; join them into one file first "
            "(llama-gguf-split --merge)"
        )
    entries = [
        _read_entry(header) for _ in range(header.check_count(num_tensors, _MIN_TENSOR_BYTES, "tensors"))
    ]
    stored = _locate(header, entries, _alignment(header, metadata))
    return Checkpoint(path, "gguf", metadata, LazyTensors(stored, _build), stored)


class _Entry(NamedTuple):
    name: str
    type_name: str
    shape: tuple[int, ...]
    num_bytes: int
    offset: int


class _Header:
    """A cursor over the header; it names what it was reading when the file ends too early."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.end = len(buffer)
        self.offset = 0

    def fail(self, problem: str) -> Never:
        raise CorruptModel(f"{self.path}: {problem}; the file is damaged or not a GGUF file, fetch it again")

    def take(self, num_bytes: int, what: str) -> int:
        """Step over ``num_bytes`` and return where they start."""
        start = self.offset
        if num_bytes > self.end - start:
            self.fail(
                f"{what} at byte {start:,} needs {num_bytes:,} bytes, but the file ends at {self.end:,}"
            )
        self.offset = start + num_bytes
        return start

    def number(self, code: str, what: str) -> int:
        layout = struct.Struct("<" + code)
        value: int = layout.unpack_from(self.buffer, self.take(layout.size, what))[0]
        return value

    def text(self, what: str) -> str:
        return self.strings(1, what)[0]

    def check_count(self, count: int, min_bytes: int, what: str) -> int:
        """Refuse a count that the bytes left in the file cannot hold."""
        left = self.end - self.offset
        if count * min_bytes > left:
            self.fail(
                f"{count:,} {what} announced at byte {self.offset:,}, with {left:,} bytes left in the file"
            )
        return count

    def value(self, kind: int, key: str, depth: int = 0) -> object:
        if kind == _STRING:
            return self.text(f"the value of {key!r}")
        if kind == _ARRAY:
            return self.array(key, depth)
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], f"the value of {key!r}")
        return self.fail(f"metadata key {key!r} has unknown value type {kind}")

    def array(self, key: str, depth: int) -> list[object]:
        kind = self.number("I", f"the element type of {key!r}")
        count = self.number("Q", f"the length of {key!r}")
        items = f"elements of {key!r}"
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
            self.check_count(count, dtype.itemsize, items)
            start = self.take(count * dtype.itemsize, items)
            values: list[object] = np.frombuffer(self.buffer, dtype, count, start).tolist()
            return values
        if kind == _STRING:
            return list(self.strings(self.check_count(count, _MIN_STRING_BYTES, items), items))
        if kind != _ARRAY or depth == _MAX_ARRAY_DEPTH:
            self.fail(f"metadata key {key!r} has an array of unknown type {kind} at depth {depth}")
        return [self.array(key, depth + 1) for _ in range(self.check_count(count, _MIN_ARRAY_BYTES, items))]

    def strings(self, count: int, what: str) -> list[str]:
        # Local names and inlined checks: this loop sees every token and every merge of the vocabulary.
        buffer, end, offset, read_length = self.buffer, self.end, self.offset, _U64.unpack_from
        values = []
        for _ in range(count):
            start = offset + 8
            if start > end:
                self.fail(f"{what} at byte {offset:,} runs past the end of the file at {end:,}")
            (length,) = read_length(buffer, offset)
            if length > end - start:
                self.fail(f"{what} at byte {offset:,} is {length:,} bytes long, but the file ends at {end:,}")
            offset = start + length
            try:
                values.append(buffer[start:offset].decode())
            except UnicodeDecodeError as error:
                self.fail(f"{what} at byte {start:,} is not UTF-8 ({error.reason})")
        self.offset = offset
        return values


def _read_start(header: _Header) -> tuple[int, int]:
    """Check magic and version; return the numbers of tensors and of metadata entries."""
    start = header.take(4, "the magic number")
    magic = header.buffer[start : start + 4]
    if magic != _MAGIC:
        header.fail(f"starts with {magic!r} instead of {_MAGIC!r}")
    version = header.number("I", "the version")
    if version and version & 0xFFFF == 0:
        raise UnsupportedModel(f"{header.path} is a big-endian GGUF file; convert it to little-endian")
    if version not in _VERSIONS:
        raise UnsupportedModel(f"{header.path} is GGUF version {version}; Octavo reads versions {_VERSIONS}")
    return header.number("Q", "the number of tensors"), header.number("Q", "the number of metadata entries")


def _alignment(header: _Header, metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 8 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        header.fail(f"general.alignment is {value!r}, not a power of two from 8 to {_MAX_ALIGNMENT}")
    return value


def _read_entry(header: _Header) -> _Entry:
    name = header.text("a tensor's name")
    what = f"the description of tensor {name!r}"
    num_dimensions = header.number("I", what)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        header.fail(f"tensor {name!r} has {num_dimensions} dimensions, not 1 to {_MAX_DIMENSIONS}")
    # GGUF writes the innermost dimension first.
    shape = tuple(header.number("Q", what) for _ in range(num_dimensions))[::-1]
    type_id = header.number("I", what)
    offset = header.number("Q", what)
    try:
        tensor_type = gguf.GGMLQuantizationType(type_id)
    except ValueError:
        raise UnsupportedModel(
            f"{header.path}: tensor {name!r} has type number {type_id}, unknown to the installed gguf library"
        ) from None
    values_per_block, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
    if 0 in shape or shape[-1] % values_per_block:
        header.fail(
            f"tensor {name!r} of shape {shape} does not have rows of whole {tensor_type.name} blocks "
            f"of {values_per_block}"
        )
    return _Entry(name, tensor_type.name, shape, prod(shape) // values_per_block * block_bytes, offset)


def _locate(header: _Header, entries: list[_Entry], alignment: int) -> dict[str, StoredTensor]:
    """Check that every tensor lies inside the file and in nobody else's bytes; map each."""
    data_start = -(-header.offset // alignment) * alignment
    file_bytes = np.frombuffer(header.buffer, np.uint8)
    stored: dict[str, StoredTensor] = {}
    previous_end, previous_name = 0, ""
    for entry in sorted(entries, key=lambda entry: entry.offset):
        where = f"tensor {entry.name!r} ({entry.type_name}, shape {entry.shape})"
        start = data_start + entry.offset
        stop = start + entry.num_bytes
        if entry.name in stored:
            header.fail(f"{where} appears twice")
        if entry.offset % alignment:
            header.fail(f"{where} has offset {entry.offset:,}, not a multiple of the alignment {alignment}")
        if stop > header.end:
            header.fail(f"{where} takes bytes {start:,} to {stop:,}, but the file ends at {header.end:,}")
        if entry.offset < previous_end:
            header.fail(f"{where} starts at offset {entry.offset:,} inside tensor {previous_name!r}")
        previous_end, previous_name = entry.offset + entry.num_bytes, entry.name
        data = file_bytes[start:stop]
        stored[entry.name] = StoredTensor(entry.type_name, entry.shape, data)
    # In the file's own order, as the rest of the header is.
    return {entry.name: stored[entry.name] for entry in entries}


def _build(name: str, stored: StoredTensor) -> WeightTensor:
    if stored.type_name in BLOCK_OF:
        return as_weight(name, cast(Encoding, stored.type_name), stored.shape, stored.data)
    values = _dequantize_by_library(name, stored)
    return as_weight(name, "F32", stored.shape, values.reshape(-1).view(np.uint8))


def _dequantize_by_library(name: str, stored: StoredTensor) -> npt.NDArray[np.float32]:
    try:
        return dequantize_by_library(stored.data.reshape(prod(stored.shape[:-1]), -1), stored.type_name)
    except NotImplementedError:
        raise UnsupportedModel(
            f"tensor {name!r} has type {stored.type_name}, which Octavo cannot read; it reads "
            f"{', '.join(BLOCK_OF)} and converts the IQ types"
        ) from None
