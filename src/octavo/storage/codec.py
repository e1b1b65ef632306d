"""KV values to the bytes of a tile and back, in NumPy: the packing of ``storage/layout.py``, spelled out.

Kernels pack for themselves; this is for the oracle, for tests and for tools that look into a cache.
Legend: P tokens per block, D head dim, s bytes per element, n tokens of a sequence, Hkv KV heads.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.storage.arena import Arena
from octavo.storage.layout import StorageDtype, TileAddress

Array = npt.NDArray[np.generic]
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
ELEMENTS: dict[StorageDtype, npt.DTypeLike] = {
    "bfloat16": np.uint16,
    "float32": np.float32,
}


def encode(values: npt.NDArray[np.floating], dtype: StorageDtype) -> Array:
    """Round floats to storage elements of the same shape: bfloat16 as uint16 bits, nearest even."""
    floats = np.ascontiguousarray(values, np.float32)
    if dtype == "float32":
        return floats
    bits = floats.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return np.where(np.isnan(floats), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def decode(elements: Array) -> FloatArray:
    """Storage elements as float32, exactly."""
    if elements.dtype == np.float32:
        return elements.astype(np.float32)
    return (elements.astype(np.uint32) << 16).view(np.float32)


def pack_k(elements: Array) -> npt.NDArray[np.uint8]:
    """K elements [..., P, D] as tile bytes [..., P * D * s]: ``[P / 8][D * s / 8][8 tokens][8 bytes]``."""
    *lead, num_tokens, head_dim = elements.shape
    per_chunk = 8 // elements.itemsize
    lines = elements.reshape(*lead, num_tokens // 8, 8, head_dim // per_chunk, per_chunk).swapaxes(-3, -2)
    return np.ascontiguousarray(lines).reshape(*lead, -1).view(np.uint8)


def unpack_k(tile: npt.NDArray[np.uint8], head_dim: int, dtype: StorageDtype) -> Array:
    """The inverse of ``pack_k``: [..., P * D * s] bytes to elements [..., P, D]."""
    elements = np.ascontiguousarray(tile).view(ELEMENTS[dtype])
    per_chunk = 8 // elements.itemsize
    lines = elements.reshape(*tile.shape[:-1], -1, head_dim // per_chunk, 8, per_chunk).swapaxes(-3, -2)
    return np.ascontiguousarray(lines).reshape(*tile.shape[:-1], -1, head_dim)


def pack_v(elements: Array) -> npt.NDArray[np.uint8]:
    """V elements [..., P, D] as tile bytes [..., P * D * s]: ``[P / u][D][u]`` with u = 4 / s."""
    *lead, num_tokens, head_dim = elements.shape
    unit = 4 // elements.itemsize
    units = elements.reshape(*lead, num_tokens // unit, unit, head_dim).swapaxes(-2, -1)
    return np.ascontiguousarray(units).reshape(*lead, -1).view(np.uint8)


def unpack_v(tile: npt.NDArray[np.uint8], head_dim: int, dtype: StorageDtype) -> Array:
    """The inverse of ``pack_v``: [..., P * D * s] bytes to elements [..., P, D]."""
    elements = np.ascontiguousarray(tile).view(ELEMENTS[dtype])
    units = elements.reshape(*tile.shape[:-1], -1, head_dim, 4 // elements.itemsize).swapaxes(-2, -1)
    return np.ascontiguousarray(units).reshape(*tile.shape[:-1], -1, head_dim)


def read_kv(
    arena: Arena, layer: int, block_tables: Sequence[IntArray], row: int, num_tokens: int
) -> tuple[FloatArray, FloatArray]:
    """K and V of a row's first ``num_tokens`` tokens: two float32 [n, Hkv, D] arrays."""
    layout, window = arena.layout, arena.layout.layers[layer]
    num_blocks = -(-num_tokens // window.block_size)
    tile_bytes = _tile_bytes(arena, layer)

    def read(address: TileAddress) -> npt.NDArray[np.uint8]:
        blocks = block_tables[address.table][row, :num_blocks]
        return arena.data[blocks, address.offset : address.offset + tile_bytes]

    def heads(addresses: Sequence[TileAddress], packed_as_k: bool) -> FloatArray:
        unpack = unpack_k if packed_as_k else unpack_v
        tiles = [unpack(read(address), layout.head_dim, layout.dtype) for address in addresses]
        return decode(np.stack([t.reshape(-1, layout.head_dim)[:num_tokens] for t in tiles], axis=1))

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
    size, tile_bytes = window.block_size, _tile_bytes(arena, layer)
    positions = np.arange(start, start + len(k))
    for values, addresses, pack, unpack in (
        (k, window.k_tiles, pack_k, unpack_k),
        (v, window.v_tiles, pack_v, unpack_v),
    ):
        for head, address in enumerate(addresses):
            elements = encode(values[:, head], layout.dtype)
            for index in np.unique(positions // size):
                inside = positions // size == index
                block = block_tables[address.table][row, index]
                tile = arena.data[block, address.offset : address.offset + tile_bytes]
                content = unpack(tile, layout.head_dim, layout.dtype)
                content[positions[inside] % size] = elements[inside]
                tile[:] = pack(content)


def _tile_bytes(arena: Arena, layer: int) -> int:
    layout = arena.layout
    return layout.layers[layer].block_size * layout.head_dim * np.dtype(ELEMENTS[layout.dtype]).itemsize
