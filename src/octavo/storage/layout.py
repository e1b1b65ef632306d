"""Where each layer's K and V lie inside a block.

A *frame* is one block of the pool: ``frame_bytes`` contiguous bytes, so that a copy, a swap or a file write
is one move. Inside it lie *tiles*. A tile holds K or V of one layer and KV head for ``block_size`` tokens.
Every tile has an address: which block table leads to its frame (``table``), and the byte offset in the frame.
With one group of layers there is one table and the tiles of all layers share the frame; with several groups
each group has its own tables, and nothing else changes for the kernels.

Packing inside a tile ("rows8"), chosen so that kernels need no shuffles and results do not depend on P
(s = bytes of one element; P is a multiple of 8, D a multiple of 16):

    K  [P / 8][D * s / 8][8 tokens][8 bytes]   8 bytes = 8 / s consecutive dims of one token
    V  [P / u][D][u]  with u = 4 / s           u consecutive tokens of one dim side by side (float32: [P, D])

An int8 tile goes on with the scales of its tokens, float32 [P], padded to 64 bytes: a value is its byte times
the scale of its token. K bytes are stored with 128 added, V bytes as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

StorageDtype = Literal["bfloat16", "float16", "float32", "int8"]
DTYPE_BYTES: dict[StorageDtype, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1}
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
        name = f"{PACKING}/{self.dtype}/L{len(self.layers)}/H{self.num_kv_heads}/D{self.head_dim}/P{tables}"
        if self.num_tables == 1:
            return name
        places = blake2b(repr((self.frame_bytes, self.layers)).encode(), digest_size=8).hexdigest()
        return f"{name}/{places}"

    @staticmethod
    def uniform(
        *, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: StorageDtype
    ) -> "KVLayout":
        """All layers in one group: one table, K and V of every layer and head in each frame."""
        num_tiles = num_layers * num_kv_heads * 2
        return KVLayout.grouped(
            [(range(num_layers), block_size, num_tiles)],
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            frame_bytes=num_tiles * tile_bytes(dtype, block_size, head_dim),
            dtype=dtype,
        )

    @staticmethod
    def grouped(
        groups: Sequence[tuple[Sequence[int], int, int]],
        *,
        num_kv_heads: int,
        head_dim: int,
        frame_bytes: int,
        dtype: StorageDtype,
    ) -> "KVLayout":
        """Groups of layers, each with its own block size and tables, in frames of equal size.

        A group's tiles follow each other layer by layer, head by head, K before V. The first
        ``tiles_per_frame`` of them lie in the frames of the group's first table, the next in those of its
        second, and so on. Tables are numbered through the groups in order.

        Args:
            groups: ``(layers, block_size, tiles_per_frame)`` of each; every layer is in exactly one.

        Raises:
            ValueError: a layer is missing or named twice, or the tiles do not fit the frame.
        """
        table_block_sizes: list[int] = []
        windows: dict[int, LayerWindow] = {}
        for layers, block_size, tiles_per_frame in groups:
            tile = tile_bytes(dtype, block_size, head_dim)
            if not 1 <= tiles_per_frame <= frame_bytes // tile:
                raise ValueError(f"{tiles_per_frame} tiles of {tile} bytes in a frame of {frame_bytes}")
            first_table = len(table_block_sizes)
            tiles = [
                TileAddress(first_table + i // tiles_per_frame, i % tiles_per_frame * tile)
                for i in range(len(layers) * num_kv_heads * 2)
            ]
            table_block_sizes += [block_size] * (tiles[-1].table + 1 - first_table)
            for i, layer in enumerate(layers):
                own = tiles[i * num_kv_heads * 2 : (i + 1) * num_kv_heads * 2]
                if layer in windows:
                    raise ValueError(f"layer {layer} is in two groups")
                windows[layer] = LayerWindow(block_size, tuple(own[::2]), tuple(own[1::2]))
        if sorted(windows) != list(range(len(windows))):
            raise ValueError(f"the groups have layers {sorted(windows)}; each from 0 on is needed once")
        in_order = tuple(windows[layer] for layer in range(len(windows)))
        return KVLayout(dtype, num_kv_heads, head_dim, frame_bytes, tuple(table_block_sizes), in_order)
