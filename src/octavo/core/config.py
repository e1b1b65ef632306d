"""Engine settings: one frozen value, checked once, never written to again."""

from dataclasses import dataclass
from typing import Literal, get_args

from octavo.core.errors import InvalidConfig

KVDtype = Literal["auto", "bfloat16", "float32"]
Activations = Literal["auto", "int8", "float32"]

MIN_BLOCK_SIZE = 8
MAX_BLOCK_SIZE = 128


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine lays out its memory and bounds its work.

    Attributes:
        block_size: tokens per KV block; a multiple of 8 in 8..128.
        kv_memory_bytes: bytes of the KV pool, or None to choose from what the machine has free.
        kv_dtype: element type of K and V; "auto" is bfloat16.
        activations: how linear layers see their input. "auto" quantizes it to int8 per 32 values where
            the weights are int4 or int8 and keeps float32 elsewhere; "float32" never quantizes.
        prefix_cache: reuse the blocks of equal prompt prefixes.
        max_num_seqs: sequences that may run at once (rows).
        max_step_tokens: token budget of one step, over all sequences.
        max_context: longest sequence in tokens, or None for the model's own limit.
        threads: worker threads of the native kernels, or None for the cores this process may use.
    """

    block_size: int = 16
    kv_memory_bytes: int | None = None
    kv_dtype: KVDtype = "auto"
    activations: Activations = "auto"
    prefix_cache: bool = True
    max_num_seqs: int = 64
    max_step_tokens: int = 512
    max_context: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.block_size % 8 or not MIN_BLOCK_SIZE <= self.block_size <= MAX_BLOCK_SIZE:
            raise InvalidConfig(
                f"block_size={self.block_size}: must be a multiple of 8 from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}"
            )
        if self.kv_dtype not in get_args(KVDtype):
            raise InvalidConfig(f"kv_dtype={self.kv_dtype!r}: choose one of {', '.join(get_args(KVDtype))}")
        if self.activations not in get_args(Activations):
            raise InvalidConfig(
                f"activations={self.activations!r}: choose one of {', '.join(get_args(Activations))}"
            )
        for name, value in (
            ("kv_memory_bytes", self.kv_memory_bytes),
            ("max_num_seqs", self.max_num_seqs),
            ("max_step_tokens", self.max_step_tokens),
            ("max_context", self.max_context),
            ("threads", self.threads),
        ):
            if value is not None and value < 1:
                raise InvalidConfig(f"{name}={value}: must be at least 1")
