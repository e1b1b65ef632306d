"""Where each layer's K and V lie inside a block.

A *frame* is one block of the pool: ``frame_bytes`` contiguous bytes, so that a copy, a swap or a file write
is one move. Inside it lie *tiles*. A tile holds K or V of one layer and one KV head for ``block_size``
tokens. Every tile has an address: which block table leads to its frame (``table``), and the byte offset in
the frame. With one group of layers there is one table and the tiles of all layers share the frame; with
several groups each group has its own tables, and nothing else changes for the kernels.

Packing inside a tile ("rows8"), chosen so that kernels need no shuffles and results do not depend on P
(s = bytes of one element; P is a multiple of 8, D a multiple of 16):

    K  [P / 8][D * s / 8][8 tokens][8 bytes]   8 bytes = 8 / s consecutive dims of one token
    V  [P / u][D][u]  with u = 4 / s           u consecutive tokens of one dim, side by side

An int8 tile goes on with the scales of its tokens, float32 [P], padded to 64 bytes: a value is its byte times
the scale of its token. K bytes are stored with 128 added, V bytes as they are.
"""

from dataclasses import dataclass
from typing import Literal

StorageDtype = Literal["bfloat16", "float32", "int8"]
DTYPE_BYTES: dict[StorageDtype, int] = {"bfloat16": 2, "float32": 4, "int8": 1}
PACKING = "rows8"


def tile_bytes(dtype: StorageDtype, block_size: int, head_dim: int) -> int:
    """Bytes of a tile, a multiple of 64."""
    scales = -(-block_size * 4 // 64) * 64 if dtype == "int8" else 0
    return block_size * head_dim * DTYPE_BYTES[dtype] + scales


@dataclass(frozen=True, slots=True)
class TileAddress:
    """A tile's place: index of the block table that names its frame, and byte offset in that frame."""

    table: int
    offset: int


@dataclass(frozen=True, slots=True)
class LayerWindow:
    """One layer's view of the arena: block size and the tile addresses of each KV head."""

    block_size: int
    k_tiles: tuple[TileAddress, ...]
    v_tiles: tuple[TileAddress, ...]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The map from (layer, KV head, K or V) to tables and offsets.

    Attributes:
        table_block_sizes: tokens per block of each block table.
        layers: one window per layer.
    """

    dtype: StorageDtype
    num_kv_heads: int
    head_dim: int
    frame_bytes: int
    table_block_sizes: tuple[int, ...]
    layers: tuple[LayerWindow, ...]

    @property
    def num_tables(self) -> int:
        """Block tables per sequence."""
        return len(self.table_block_sizes)

    @property
    def name(self) -> str:
        """Identifies the byte layout; part of every content-hash namespace and file header."""
        tables = "-".join(map(str, self.table_block_sizes))
        return f"{PACKING}/{self.dtype}/L{len(self.layers)}/H{self.num_kv_heads}/D{self.head_dim}/P{tables}"

    @staticmethod
    def uniform(
        *, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: StorageDtype
    ) -> "KVLayout":
        """All layers in one group: one table, K and V of every layer and head in each frame."""
        tile = tile_bytes(dtype, block_size, head_dim)
        windows = []
        for layer in range(num_layers):
            base = layer * num_kv_heads * 2 * tile
            windows.append(
                LayerWindow(
                    block_size,
                    tuple(TileAddress(0, base + h * 2 * tile) for h in range(num_kv_heads)),
                    tuple(TileAddress(0, base + (h * 2 + 1) * tile) for h in range(num_kv_heads)),
                )
            )
        frame_bytes = num_layers * num_kv_heads * 2 * tile
        return KVLayout(dtype, num_kv_heads, head_dim, frame_bytes, (block_size,), tuple(windows))
