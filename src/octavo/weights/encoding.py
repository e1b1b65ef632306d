"""The encodings that kernels read, as NumPy: sizes, values, and reordering without loss."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import gguf
import numpy as np
import numpy.typing as npt

from octavo.weights.tensor import BLOCK_OF, WeightTensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Values decoded at a time: the temporaries of one step stay in the cache.
_STEP_VALUES = 1 << 18


def row_bytes(encoding: str, num_values: int) -> int:
    """Bytes of one row of ``num_values`` values.

    Raises:
        ValueError: the row is not a whole number of blocks.
    """
    values_per_block, block_bytes = BLOCK_OF[encoding]
    if num_values % values_per_block:
        raise ValueError(
            f"{num_values} values are not a whole number of {encoding} blocks of {values_per_block}"
        )
    return num_values // values_per_block * block_bytes


def dequantize(tensor: WeightTensor) -> Floats:
    """All values of ``tensor`` as float32, in its shape. The arithmetic is the encoding's own, in float32."""
    num_rows = tensor.data.shape[0]
    num_columns = tensor.shape[-1] if tensor.shape else 1
    values = np.empty((num_rows, num_columns), np.float32)
    if values.size:
        decode = _DECODERS.get(tensor.encoding)
        if decode is None:
            return dequantize_by_library(tensor.data, tensor.encoding).reshape(tensor.shape)
        step = max(1, _STEP_VALUES // num_columns)
        for start in range(0, num_rows, step):
            decode(tensor.data[start : start + step], values[start : start + step])
    return values.reshape(tensor.shape)


def dequantize_by_library(rows: Bytes, type_name: str) -> Floats:
    """Float32 [rows, values], as the gguf library computes it.

    Raises:
        NotImplementedError: the library cannot.
    """
    decode: Callable[..., Floats] = gguf.dequantize
    # A scale of infinity gives infinite or undefined values, not a warning in the middle of loading.
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(decode(rows, gguf.GGMLQuantizationType[type_name]), np.float32)


def permute_rows(tensor: WeightTensor, index: npt.NDArray[np.integer] | Sequence[int]) -> WeightTensor:
    """Reorder the outputs: row ``i`` of the result is row ``index[i]`` of ``tensor``, bit for bit.

    A vector (a bias) is reordered value by value.

    Raises:
        ValueError: ``index`` is not a permutation of the rows, or the values of a vector share blocks.
    """
    num_rows = tensor.shape[0] if len(tensor.shape) in (1, 2) else 0
    order = np.asarray(index)
    if (
        not num_rows
        or order.dtype.kind not in "iu"
        or not np.array_equal(np.sort(order), np.arange(num_rows))
    ):
        raise ValueError(f"not a permutation of the rows of {tensor.name!r}, whose shape is {tensor.shape}")
    if len(tensor.shape) == 2:
        return replace(tensor, data=tensor.data[order])
    values_per_block, value_bytes = BLOCK_OF[tensor.encoding]
    if values_per_block != 1:
        raise ValueError(
            f"the values of vector {tensor.name!r} share {tensor.encoding} blocks: cannot reorder"
        )
    return replace(tensor, data=tensor.data.reshape(num_rows, value_bytes)[order].reshape(1, -1))


def _decode_f32(rows: Bytes, out: Floats) -> None:
    out[...] = rows.view("<f4")


def _decode_f16(rows: Bytes, out: Floats) -> None:
    out[...] = rows.view("<f2")


def _decode_bf16(rows: Bytes, out: Floats) -> None:
    # A bfloat16 is the upper half of the float32 with the same value.
    np.left_shift(rows.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def _decode_q8_0(rows: Bytes, out: Floats) -> None:
    blocks, values = _as_blocks(rows, out, 34)
    np.multiply(blocks[..., 2:].view(np.int8), _half(blocks, 0), out=values)


def _decode_q4_0(rows: Bytes, out: Floats) -> None:
    blocks, values = _as_blocks(rows, out, 18)
    _spread_nibbles(blocks[..., 2:], values)
    values -= 8
    values *= _half(blocks, 0)


def _decode_q4_1(rows: Bytes, out: Floats) -> None:
    blocks, values = _as_blocks(rows, out, 20)
    _spread_nibbles(blocks[..., 4:], values)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)


def _as_blocks(rows: Bytes, out: Floats, block_bytes: int) -> tuple[Bytes, Floats]:
    """View rows as [rows, blocks, bytes of a block] and their values as [rows, blocks, 32]."""
    num_rows = rows.shape[0]
    return rows.reshape(num_rows, -1, block_bytes), out.reshape(num_rows, -1, 32)


def _half(blocks: Bytes, offset: int) -> Floats:
    """The float16 at byte ``offset`` of every block, [rows, blocks, 1] in float32."""
    return blocks[..., offset : offset + 2].view("<f2").astype(np.float32)


def _spread_nibbles(packed: Bytes, values: Floats) -> None:
    """Byte i of a block holds value i in its low half and value i + 16 in its high half."""
    values[..., :16] = packed & 15
    values[..., 16:] = packed >> 4


_DECODERS: dict[str, Callable[[Bytes, Floats], None]] = {
    "F32": _decode_f32,
    "F16": _decode_f16,
    "BF16": _decode_bf16,
    "Q8_0": _decode_q8_0,
    "Q4_0": _decode_q4_0,
    "Q4_1": _decode_q4_1,
}
