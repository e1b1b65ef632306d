"""Groups of layers, each with its own block size and window, out of one pool of byte-equal frames.

The unit of placement is the *tile*: K or V of one layer and one KV head for ``block_size`` tokens. A group
with T tiles puts as many of them in a frame as fit, and the rest in more frames, one per block table. So a
group with large blocks has few tiles per frame and several tables, one with small blocks has many tiles
per frame and few tables, and any free frame serves any group.

Frame size is counted in *tile-tokens*, the tokens that one tile could have if it were alone in the frame.
With F of them a group of T tiles and P tokens per block needs ``ceil(T / floor(F / P))`` frames per block.
Nothing is wasted when ``F / P`` is whole and divides T, for every group at once. For SmolLM2 (60 tiles per 10
layers) with blocks of 64, 16 and 8 tokens, F = 480 gives 7, 30 and 60 tiles per frame and 9, 2 and 1 tables:
the first group leaves 3 of its 63 places empty and 32 of 480 tile-tokens per frame, 4 % of the pool in total.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from octavo.core.config import MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, BlockSizes
from octavo.core.errors import InvalidConfig

BLOCK_SIZE_STEP = 8
TILE_ALIGNMENT_BYTES = 64
MAX_PADDING = 0.05
TABLE_COST = 0.001  # one more block table must save this fraction of the pool to be worth its bookkeeping


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What the memory policy needs to know of one group of layers.

    Attributes:
        block_size: tokens per block.
        window: tokens a query sees, itself included, or None for all before it.
        num_tables: frames that one block occupies, one per block table of the group.
    """

    block_size: int
    window: int | None = None
    num_tables: int = 1

    def __post_init__(self) -> None:
        for name, value in (("block_size", self.block_size), ("num_tables", self.num_tables)):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1, or None for no window")

    def most_blocks(self, seq_len: int) -> int:
        """Blocks that a sequence holds at most on its way to ``seq_len`` tokens, computed one by one."""
        count = -(-seq_len // self.block_size)
        if self.window is None:
            return count
        return min(count, (self.window + self.block_size - 2) // self.block_size + 1)


def most_frames(groups: Iterable[GroupSpec], seq_len: int) -> int:
    """Frames that a sequence holds at most on its way to ``seq_len`` tokens, computed one by one."""
    return sum(group.most_blocks(seq_len) * group.num_tables for group in groups)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share block size and window, and how their tiles lie in frames.

    Attributes:
        num_tiles: of all its layers; the first ``tiles_per_frame`` lie in the frames of its first table.
        padding: fraction of its frames' bytes that no tile uses.
    """

    layers: tuple[int, ...]
    block_size: int
    window: int | None
    num_tiles: int
    tiles_per_frame: int
    num_tables: int
    padding: float

    @property
    def spec(self) -> GroupSpec:
        """What the memory policy needs to know of it."""
        return GroupSpec(self.block_size, self.window, self.num_tables)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """How the layers of a model share one pool.

    Attributes:
        frame_bytes: bytes of one frame.
        padding: fraction of the pool's bytes that no tile uses, for sequences that fill their blocks.
    """

    frame_bytes: int
    groups: tuple[LayerGroup, ...]
    padding: float

    @property
    def specs(self) -> tuple[GroupSpec, ...]:
        """The groups as the memory policy takes them."""
        return tuple(group.spec for group in self.groups)

    @property
    def placement(self) -> list[tuple[tuple[int, ...], int, int]]:
        """The groups as the byte layout takes them: layers, block size, tiles per frame."""
        return [(group.layers, group.block_size, group.tiles_per_frame) for group in self.groups]

    @property
    def bytes_per_token(self) -> float:
        """Pool bytes that one more token of a long sequence takes, padding included."""
        return sum(self.frame_bytes * group.num_tables / group.block_size for group in self.groups)

    def describe(self) -> str:
        """One line per group."""
        lines = [
            f"layers {format_layers(g.layers)}: blocks of {g.block_size} tokens"
            + (f", window {g.window}" if g.window else "")
            + f", {g.tiles_per_frame} tiles per frame, {g.num_tables} tables, {g.padding:.1%} padding"
            for g in self.groups
        ]
        return "\n".join([*lines, f"frames of {self.frame_bytes} bytes, {self.padding:.1%} padding in total"])


@dataclass(frozen=True, slots=True)
class _Shape:
    """A group before its frame is known."""

    layers: tuple[int, ...]
    block_size: int
    window: int | None
    num_tiles: int

    def tables(self, frame_tokens: int) -> int:
        return -(-self.num_tiles // self.tiles_per_frame(frame_tokens))

    def tiles_per_frame(self, frame_tokens: int) -> int:
        return min(self.num_tiles, frame_tokens // self.block_size)

    def tile_tokens_per_token(self, frame_tokens: int) -> float:
        return self.tables(frame_tokens) * frame_tokens / self.block_size


def plan_groups(
    block_sizes: BlockSizes,
    *,
    num_layers: int,
    num_kv_heads: int,
    token_bytes: int,
    windows: Sequence[int | None] | None = None,
    max_padding: float = MAX_PADDING,
) -> GroupPlan:
    """Group the layers by block size and window, and find the frame size that wastes least.

    Args:
        token_bytes: bytes of one token in a tile: head dim times bytes per element.
        windows: sliding window of each layer, or None for no windows.

    Raises:
        InvalidConfig: the ranges do not cover each layer once, a block size is out of range, or more than
            ``max_padding`` of the pool would be wasted; then it names the nearest block sizes that fit.
    """
    sizes = parse_block_sizes(block_sizes, num_layers)
    if windows is not None and len(windows) != num_layers:
        raise InvalidConfig(f"{len(windows)} windows for {num_layers} layers: give one per layer")
    for size in sizes:
        if size * token_bytes % TILE_ALIGNMENT_BYTES:
            raise InvalidConfig(
                f"block size {size} with {token_bytes} bytes per token: a tile of {size * token_bytes} bytes "
                f"is no multiple of {TILE_ALIGNMENT_BYTES}; choose a larger power of two"
            )
    windows = windows or [None] * num_layers
    shapes = _shapes(sizes, windows, num_kv_heads)
    frame_tokens = _best_frame(shapes, max_padding)
    plan = _plan(shapes, frame_tokens, token_bytes)
    if plan.padding > max_padding:
        raise InvalidConfig(
            f"block sizes {_format_sizes(sizes)} would waste {plan.padding:.1%} of the KV pool at best, "
            f"the limit is {max_padding:.0%}; the nearest choice that fits is "
            f"{_nearest_fit(shapes, windows, num_kv_heads, token_bytes, max_padding)}. "
            f"Group by group:\n{plan.describe()}"
        )
    return plan


def parse_block_sizes(block_sizes: BlockSizes, num_layers: int) -> list[int]:
    """Block size of each layer, from one number or from ``{"0-9": 64, "10,12-29": 16}``.

    Raises:
        InvalidConfig: a range is malformed, a layer unknown, missing or named twice, or a size out of range.
    """
    if isinstance(block_sizes, int):
        return [_checked_size(block_sizes)] * num_layers
    sizes: dict[int, int] = {}
    for text, size in block_sizes.items():
        _checked_size(size)
        for layer in _parse_layers(text):
            if layer >= num_layers:
                raise InvalidConfig(
                    f"block_size[{text!r}]: layer {layer} of a model with {num_layers} layers"
                )
            if layer in sizes:
                raise InvalidConfig(f"block_size[{text!r}]: layer {layer} has a block size already")
            sizes[layer] = size
    missing = [layer for layer in range(num_layers) if layer not in sizes]
    if missing:
        raise InvalidConfig(f"block_size: layers {format_layers(missing)} have none; name each layer once")
    return [sizes[layer] for layer in range(num_layers)]


def format_layers(layers: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``"0-2,5"``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _parse_layers(text: str) -> Iterator[int]:
    for part in str(text).split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise InvalidConfig(f"block_size[{text!r}]: not layers; write for example '0-9' or '0,2,4-7'")
        yield from range(int(found[1]), int(found[2] or found[1]) + 1)


def _checked_size(size: int) -> int:
    if size % BLOCK_SIZE_STEP or not MIN_BLOCK_SIZE <= size <= MAX_BLOCK_SIZE:
        raise InvalidConfig(
            f"block size {size}: must be a multiple of {BLOCK_SIZE_STEP} from {MIN_BLOCK_SIZE} "
            f"to {MAX_BLOCK_SIZE}"
        )
    return size


def _shapes(sizes: Sequence[int], windows: Sequence[int | None], num_kv_heads: int) -> list[_Shape]:
    members: dict[tuple[int, int | None], list[int]] = {}
    for layer, key in enumerate(zip(sizes, windows, strict=True)):
        members.setdefault(key, []).append(layer)
    return [
        _Shape(tuple(layers), size, window, len(layers) * num_kv_heads * 2)
        for (size, window), layers in members.items()
    ]


def _padding(shapes: Sequence[_Shape], frame_tokens: int) -> float:
    """Fraction of the pool that no tile uses; each group weighs what a token of it takes."""
    return 1 - sum(s.num_tiles for s in shapes) / sum(s.tile_tokens_per_token(frame_tokens) for s in shapes)


def _best_frame(shapes: Sequence[_Shape], max_padding: float) -> int:
    """The frame size, in tile-tokens, with least padding and fewest tables.

    At the best size some group fills its frames to the last token, or the frame could be smaller. So only
    multiples of the block sizes need be tried.
    """
    smallest = max(s.block_size for s in shapes)
    sizes = {s.block_size * count for s in shapes for count in range(1, s.num_tiles + 1)}

    def cost(frame_tokens: int) -> tuple[bool, float, int]:
        padding = _padding(shapes, frame_tokens)
        tables = sum(s.tables(frame_tokens) for s in shapes)
        too_much = padding > max_padding
        return too_much, padding if too_much else padding + TABLE_COST * tables, tables

    return min((size for size in sorted(sizes) if size >= smallest), key=cost)


def _plan(shapes: Sequence[_Shape], frame_tokens: int, token_bytes: int) -> GroupPlan:
    groups = tuple(
        LayerGroup(
            layers=s.layers,
            block_size=s.block_size,
            window=s.window,
            num_tiles=s.num_tiles,
            tiles_per_frame=s.tiles_per_frame(frame_tokens),
            num_tables=s.tables(frame_tokens),
            padding=_padding([s], frame_tokens),
        )
        for s in shapes
    )
    return GroupPlan(frame_tokens * token_bytes, groups, _padding(shapes, frame_tokens))


def _nearest_fit(
    shapes: Sequence[_Shape],
    windows: Sequence[int | None],
    num_kv_heads: int,
    token_bytes: int,
    max_padding: float,
) -> str:
    """The block sizes that fit and differ in one group by the smallest factor, else one size for all."""
    wanted = [0] * len(windows)
    for shape in shapes:
        for layer in shape.layers:
            wanted[layer] = shape.block_size
    choices = []
    for shape in shapes:
        for size in range(MIN_BLOCK_SIZE, MAX_BLOCK_SIZE + 1, BLOCK_SIZE_STEP):
            if size * token_bytes % TILE_ALIGNMENT_BYTES:
                continue
            sizes = [size if layer in shape.layers else old for layer, old in enumerate(wanted)]
            changed = _shapes(sizes, windows, num_kv_heads)
            padding = _padding(changed, _best_frame(changed, max_padding))
            if padding <= max_padding:
                distance = max(size, shape.block_size) / min(size, shape.block_size)
                choices.append((distance, padding, _format_sizes(sizes)))
    if not choices:
        # One size for all always fits: a frame may be a single tile.
        return f"{min(s.block_size for s in shapes)} for all layers"
    _, padding, text = min(choices)
    return f"{text} with {padding:.1%} padding"


def _format_sizes(sizes: Sequence[int]) -> str:
    members: dict[int, list[int]] = {}
    for layer, size in enumerate(sizes):
        members.setdefault(size, []).append(layer)
    return "{" + ", ".join(f'"{format_layers(v)}": {size}' for size, v in members.items()) + "}"
