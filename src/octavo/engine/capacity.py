"""How many KV blocks the engine gets, and how long a sequence may therefore be."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from math import lcm
from typing import Final

from octavo.core.config import BlockSizes, EngineConfig
from octavo.core.errors import InvalidConfig, shown
from octavo.core.units import format_bytes
from octavo.models.spec import DecoderSpec
from octavo.paging.groups import (
    TILE_ALIGNMENT_BYTES,
    GroupPlan,
    most_frames,
    parse_block_sizes,
    plan_groups,
)
from octavo.storage.layout import StorageDtype, tile_bytes

# Share of the memory that is free after the weights are there. The rest is for the system's file cache, which
# holds the mapped weights, and for everybody else.
AUTO_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """The KV pool in numbers.

    Attributes:
        plan: how the layers share the pool: groups, block sizes, windows, padding.
        num_frames: blocks of the pool, the null block included. With several block tables one logical block
            takes as many of them as its group has tables.
        context_len: longest sequence in tokens; never more than the pool can hold.
        context_reason: what sets ``context_len``.
    """

    plan: GroupPlan
    num_frames: int
    context_len: int
    context_reason: str

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        return self.plan.frame_bytes

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Tokens per block of each group of layers."""
        return tuple(group.block_size for group in self.plan.groups)

    @property
    def block_sizes_text(self) -> str:
        """The block sizes for people: "16", or "64/16/8"."""
        return "/".join(map(str, dict.fromkeys(self.block_sizes)))

    @property
    def num_blocks(self) -> int:
        """Blocks that sequences can use."""
        return self.num_frames - 1

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV fits at once; more where layers have a window and give blocks back."""
        unit = lcm(*self.block_sizes)
        frames_per_unit = sum(g.num_tables * (unit // g.block_size) for g in self.plan.groups)
        return self.num_blocks * unit // frames_per_unit

    def num_sequences(self, seq_len: int) -> int:
        """Sequences of ``seq_len`` tokens that fit at once, if they share nothing."""
        return self.num_blocks // most_frames(self.plan.specs, seq_len)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_frames * self.block_bytes

    @property
    def padding(self) -> float:
        """Fraction of the pool that no layer uses, because its blocks do not fill their frames."""
        return self.plan.padding

    def __str__(self) -> str:
        padding = f", {self.padding:.1%} padding" if self.padding else ""
        return (
            f"{self.num_tokens:,} tokens in {self.num_blocks:,} blocks of {self.block_sizes_text} "
            f"({format_bytes(self.num_bytes)}{padding}), sequences up to {self.context_len:,}"
        )


def plan_layers(spec: DecoderSpec, block_sizes: BlockSizes, dtype: StorageDtype) -> GroupPlan:
    """Group a model's layers by block size and window, and find the frame that wastes least.

    The groups are chosen as if a token took the same bytes at every block size. Of int8 that is not quite
    true, since scales are padded; frame and padding are those of the true tiles.

    Raises:
        InvalidConfig: the block sizes do not fit the model, or would waste more than 5 % of the pool.
    """
    sizes = set(parse_block_sizes(block_sizes, spec.num_layers))
    tiles = {size: tile_bytes(dtype, size, spec.head_dim) for size in sizes}
    token_bytes = max(-(-tile // size) for size, tile in tiles.items())
    while any(size * token_bytes % TILE_ALIGNMENT_BYTES for size in sizes):
        token_bytes += 1
    plan = plan_groups(
        block_sizes,
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        token_bytes=token_bytes,
        windows=spec.sliding_window or None,
    )
    frame_bytes = max(group.tiles_per_frame * tiles[group.block_size] for group in plan.groups)
    used = {g: g.num_tiles * tiles[g.block_size] for g in plan.groups}
    taken = {g: g.num_tables * frame_bytes for g in plan.groups}
    return GroupPlan(
        frame_bytes,
        tuple(replace(g, padding=1 - used[g] / taken[g]) for g in plan.groups),
        1 - sum(used[g] / g.block_size for g in used) / sum(taken[g] / g.block_size for g in taken),
    )


def plan_capacity(
    config: EngineConfig, *, plan: GroupPlan, model_context: int, available_bytes: int
) -> KVCapacity:
    """Size the pool: what was asked for, or a share of what is free, but no more than the rows can use.

    Args:
        plan: the groups of layers and their frames.
        model_context: longest sequence the model knows positions for.
        available_bytes: memory that is free now, the weights already counted out.

    Raises:
        InvalidConfig: ``max_context`` beyond the model, or memory too small: names bytes needed and had.
    """
    groups, frame_bytes = plan.specs, plan.frame_bytes
    context, reason = model_context, "the model's own limit"
    if config.max_context is not None:
        if config.max_context > model_context:
            raise InvalidConfig(
                f"max_context={shown(config.max_context)}: the model's limit is {model_context} tokens"
            )
        context, reason = config.max_context, "max_context"
    frames_per_sequence = most_frames(groups, context)
    if config.kv_memory_bytes is not None:
        had, source = config.kv_memory_bytes, "kv_memory"
    else:
        had, source = int(available_bytes * AUTO_SHARE), f"{AUTO_SHARE:.0%} of the free memory"
    num_frames = had // frame_bytes
    if config.kv_memory_bytes is None:
        # Where a window caps what a sequence holds, a step's own tokens come on top of that.
        windowed = [group for group in groups if group.window is not None]
        of_a_step = sum(-(-config.max_step_tokens // g.block_size) * g.num_tables for g in windowed)
        num_frames = min(num_frames, config.max_num_seqs * frames_per_sequence + of_a_step + 1)
    # A whole sequence must fit if its length was asked for; otherwise one token, and the null block.
    goal, needed = "a single block", most_frames(groups, 1) + 1
    if config.max_context is not None:
        goal, needed = f"one sequence of {context} tokens", frames_per_sequence + 1
    elif len(groups) > 1:
        goal = "a block for each layer"
    if num_frames < needed:
        raise InvalidConfig(
            f"{source} is {format_bytes(had)} ({had} bytes), but {goal} takes {needed * frame_bytes} bytes: "
            f"{needed} blocks of {frame_bytes} (block 0 is never used). Raise kv_memory, lower max_context "
            "or block_size, or take kv_dtype=int8"
        )
    longest = bisect_right(range(context + 1), num_frames - 1, key=lambda n: most_frames(groups, n)) - 1
    if longest < context:
        reason = f"the KV pool holds {longest} tokens; give it more kv_memory"
    return KVCapacity(plan, num_frames, longest, reason)
