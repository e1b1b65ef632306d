"""How many KV blocks the engine gets, and how long a sequence may therefore be."""

from dataclasses import dataclass
from typing import Final

from octavo.core.config import EngineConfig
from octavo.core.errors import InvalidConfig
from octavo.core.units import format_bytes

# Share of the memory that is free after the weights are there. The rest is for the system's file cache, which
# holds the mapped weights, and for everybody else.
AUTO_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """The KV pool in numbers.

    Attributes:
        num_frames: blocks of the pool, the null block included.
        context_len: longest sequence in tokens; never more than the pool can hold.
        context_reason: what sets ``context_len``.
    """

    block_size: int
    block_bytes: int
    num_frames: int
    context_len: int
    context_reason: str

    @property
    def num_blocks(self) -> int:
        """Blocks that sequences can use."""
        return self.num_frames - 1

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV fits at once."""
        return self.num_blocks * self.block_size

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_frames * self.block_bytes

    def __str__(self) -> str:
        return (
            f"{self.num_tokens:,} tokens in {self.num_blocks:,} blocks of {self.block_size} "
            f"({format_bytes(self.num_bytes)}), sequences up to {self.context_len:,}"
        )


def plan_capacity(
    config: EngineConfig, *, block_bytes: int, model_context: int, available_bytes: int
) -> KVCapacity:
    """Size the pool: what was asked for, or a share of what is free, but no more than the rows can use.

    Args:
        block_bytes: bytes of one block of ``config.block_size`` tokens.
        model_context: longest sequence the model knows positions for.
        available_bytes: memory that is free now, the weights already counted out.

    Raises:
        InvalidConfig: ``max_context`` beyond the model, or memory too small: names bytes needed and had.
    """
    size = config.block_size
    context, reason = model_context, "the model's own limit"
    if config.max_context is not None:
        if config.max_context > model_context:
            raise InvalidConfig(
                f"max_context={config.max_context}: the model's limit is {model_context} tokens"
            )
        context, reason = config.max_context, "max_context"
    blocks_per_sequence = -(-context // size)
    if config.kv_memory_bytes is not None:
        had, source = config.kv_memory_bytes, "kv_memory"
    else:
        had, source = int(available_bytes * AUTO_SHARE), f"{AUTO_SHARE:.0%} of the free memory"
    num_frames = had // block_bytes
    if config.kv_memory_bytes is None:
        num_frames = min(num_frames, config.max_num_seqs * blocks_per_sequence + 1)
    # A whole sequence must fit if its length was asked for; otherwise one block, and the null block.
    needed = (blocks_per_sequence if config.max_context is not None else 1) + 1
    if num_frames < needed:
        goal = f"one sequence of {context} tokens" if config.max_context is not None else "a single block"
        raise InvalidConfig(
            f"{source} is {format_bytes(had)} ({had} bytes), but {goal} takes {needed * block_bytes} bytes: "
            f"{needed} blocks of {block_bytes} (block 0 is never used). Raise kv_memory, lower max_context "
            "or block_size, or keep kv_dtype at bfloat16"
        )
    if (num_frames - 1) * size < context:
        context = (num_frames - 1) * size
        reason = f"the KV pool holds {context} tokens; give it more kv_memory"
    return KVCapacity(size, block_bytes, num_frames, context, reason)
