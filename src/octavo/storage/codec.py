"""KV values to the bytes of a tile and back, in NumPy: the packing of ``storage/layout.py``, spelled out.

Kernels pack for themselves; this is for the oracle, for tests and for tools that look into a cache.
Legend: P tokens per block, D head dim, s bytes per element, n tokens of a sequence, Hkv KV heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.storage.arena import Arena
from octavo.storage.layout import StorageDtype, TileAddress, tile_bytes

Array = npt.NDArray[np.generic]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
ELEMENTS: dict[StorageDtype, npt.DTypeLike] = {
    "bfloat16": np.uint16,
    "float16": np.float16,
    "float32": np.float32,
    "int8": np.int8,
}


@dataclass(frozen=True, slots=True)
class Encoded:
    """Heads of K or V as they are stored.

    Attributes:
        elements: [..., D], bfloat16 as its bits.
        scales: float32 [...], what an element is worth; only of int8.
    """

    elements: Array
    scales: FloatArray | None = None


def encode(values: npt.NDArray[np.floating], dtype: StorageDtype) -> Encoded:
    """Round heads [..., D] to what is stored: to the nearest, ties to even.

    The scale of an int8 head is the largest magnitude / 127, or NaN if a value is not finite. What a float16
    cannot hold, infinities too, becomes the largest that it can, 65504; a NaN stays one.
    """
    floats = np.ascontiguousarray(values, np.float32)
    if dtype == "float32":
        return Encoded(floats)
    if dtype == "float16":
        most = np.finfo(np.float16).max
        return Encoded(np.clip(floats, -most, most).astype(np.float16))
    if dtype == "int8":
        with np.errstate(invalid="ignore", over="ignore"):
            defect = (floats - floats).sum(-1, dtype=np.float32)
            largest = np.abs(floats).max(-1)
            inverse = np.where(largest > 1e-30, np.float32(127) / np.maximum(largest, np.float32(1e-30)), 0)
            elements = np.rint(floats * inverse[..., None].astype(np.float32))
            finite = np.nan_to_num(elements, nan=0, posinf=0, neginf=0).astype(np.int8)
            return Encoded(finite, largest / np.float32(127) + defect)
    bits = floats.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return Encoded(np.where(np.isnan(floats), (bits >> 16) | 0x40, rounded).astype(np.uint16))


def decode(encoded: Encoded) -> FloatArray:
    """Stored heads as float32, exactly."""
    elements = encoded.elements
    if encoded.scales is not None:
        return elements.astype(np.float32) * encoded.scales[..., None]
    if elements.dtype != np.uint16:
        return elements.astype(np.float32)
    return (elements.astype(np.uint32) << 16).view(np.float32)


def pack_k(encoded: Encoded) -> Bytes:
    """K [..., P, D] as tile bytes: ``[P / 8][D * s / 8][8 tokens][8 bytes]``, scales unpadded."""
    elements = encoded.elements
    *lead, num_tokens, head_dim = elements.shape
    if encoded.scales is not None:
        elements = elements.view(np.uint8) ^ np.uint8(0x80)
    per_chunk = 8 // elements.itemsize
    lines = elements.reshape(*lead, num_tokens // 8, 8, head_dim // per_chunk, per_chunk).swapaxes(-3, -2)
    return _with_scales(np.ascontiguousarray(lines).reshape(*lead, -1).view(np.uint8), encoded.scales)


def unpack_k(tile: Bytes, block_size: int, head_dim: int, dtype: StorageDtype) -> Encoded:
    """The inverse of ``pack_k``."""
    content, scales = _split(tile, block_size, head_dim, dtype)
    if dtype == "int8":
        content = content ^ np.uint8(0x80)
    elements = content.view(ELEMENTS[dtype])
    per_chunk = 8 // elements.itemsize
    lines = elements.reshape(*tile.shape[:-1], -1, head_dim // per_chunk, 8, per_chunk).swapaxes(-3, -2)
    return Encoded(np.ascontiguousarray(lines).reshape(*tile.shape[:-1], -1, head_dim), scales)


def pack_v(encoded: Encoded) -> Bytes:
    """V [..., P, D] as tile bytes: ``[P / u][D][u]`` with u = 4 / s, scales unpadded."""
    elements = encoded.elements
    *lead, num_tokens, head_dim = elements.shape
    unit = 4 // elements.itemsize
    units = elements.reshape(*lead, num_tokens // unit, unit, head_dim).swapaxes(-2, -1)
    return _with_scales(np.ascontiguousarray(units).reshape(*lead, -1).view(np.uint8), encoded.scales)


def unpack_v(tile: Bytes, block_size: int, head_dim: int, dtype: StorageDtype) -> Encoded:
    """The inverse of ``pack_v``."""
    content, scales = _split(tile, block_size, head_dim, dtype)
    elements = content.view(ELEMENTS[dtype])
    units = elements.reshape(*tile.shape[:-1], -1, head_dim, 4 // elements.itemsize).swapaxes(-2, -1)
    return Encoded(np.ascontiguousarray(units).reshape(*tile.shape[:-1], -1, head_dim), scales)


def _with_scales(content: Bytes, scales: FloatArray | None) -> Bytes:
    return content if scales is None else np.concatenate([content, scales.view(np.uint8)], axis=-1)


def _split(
    tile: Bytes, block_size: int, head_dim: int, dtype: StorageDtype
) -> tuple[Bytes, FloatArray | None]:
    """Tile bytes without scales, and the scales [..., P]."""
    if dtype != "int8":
        return np.ascontiguousarray(tile), None
    end = block_size * head_dim
    scales = np.ascontiguousarray(tile[..., end : end + 4 * block_size]).view(np.float32)
    return np.ascontiguousarray(tile[..., :end]), scales


def read_kv(
    arena: Arena, layer: int, block_tables: Sequence[IntArray], row: int, num_tokens: int
) -> tuple[FloatArray, FloatArray]:
    """K and V of a row's first ``num_tokens`` tokens: two float32 [n, Hkv, D] arrays."""
    layout, window = arena.layout, arena.layout.layers[layer]
    num_blocks = -(-num_tokens // window.block_size)
    size = tile_bytes(layout.dtype, window.block_size, layout.head_dim)

    def heads(addresses: Sequence[TileAddress], packed_as_k: bool) -> FloatArray:
        unpack = unpack_k if packed_as_k else unpack_v
        values = []
        for address in addresses:
            blocks = block_tables[address.table][row, :num_blocks]
            tiles = arena.data[blocks, address.offset : address.offset + size]
            head = decode(unpack(tiles, window.block_size, layout.head_dim, layout.dtype))
            values.append(head.reshape(-1, layout.head_dim)[:num_tokens])
        return np.stack(values, axis=1)

    return heads(window.k_tiles, True), heads(window.v_tiles, False)


def write_kv(
    arena: Arena,
    layer: int,
    block_tables: Sequence[IntArray],
    row: int,
    start: int,
    *,
    k: npt.NDArray[np.floating],
    v: npt.NDArray[np.floating],
) -> None:
    """Write K and V, [n, Hkv, D] each, to a row's positions from ``start`` on; other slots keep theirs."""
    layout, window = arena.layout, arena.layout.layers[layer]
    size = tile_bytes(layout.dtype, window.block_size, layout.head_dim)
    positions = np.arange(start, start + len(k))
    for values, addresses, pack, unpack in (
        (k, window.k_tiles, pack_k, unpack_k),
        (v, window.v_tiles, pack_v, unpack_v),
    ):
        for head, address in enumerate(addresses):
            encoded = encode(values[:, head], layout.dtype)
            for index in np.unique(positions // window.block_size):
                inside = positions // window.block_size == index
                slots = positions[inside] % window.block_size
                block = block_tables[address.table][row, index]
                tile = arena.data[block, address.offset : address.offset + size]
                content = unpack(tile, window.block_size, layout.head_dim, layout.dtype)
                content.elements[slots] = encoded.elements[inside]
                if content.scales is not None and encoded.scales is not None:
                    content.scales[slots] = encoded.scales[inside]
                packed = pack(content)
                tile[: len(packed)] = packed
