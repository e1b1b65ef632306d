"""The native extension: kernels, threads, and the tape that replays a model's operations."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

def available_isas() -> list[str]:
    """Instruction sets that are compiled in and that this CPU has, best first."""

def isa() -> str:
    """The best of them, or what OCTAVO_ISA in the environment names (ValueError if that is none of them)."""

def usable_cores() -> int:
    """Cores this process may use: CPU affinity, limited by the CPU quota of its control groups."""

class Team:
    """``count`` threads, the caller's among them, that run one kernel or one step at a time."""

    def __init__(self, count: int) -> None: ...
    @property
    def count(self) -> int: ...

class PackedLinear:
    """A linear layer rearranged for the vector unit."""

    @property
    def num_inputs(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def all_quantized(self) -> bool:
        """All of its weights are int4 or int8."""
    @property
    def all_bf16(self) -> bool:
        """All of its weights are bfloat16."""

class WeightMemory:
    """Where packed weights lie: large mappings, on huge pages where the system has them.

    A mapping is released when all layers in it are gone, and this too if it is the latest.
    """

    def __init__(self) -> None: ...

def pack_linear(
    team: Team, memory: WeightMemory, weights: Sequence[tuple[str, Bytes, int, Float32s | None]]
) -> PackedLinear:
    """Pack ``(encoding, bytes [N, row bytes], number of inputs, bias [N] or None)`` side by side, copying.

    Raises:
        ValueError: sizes that do not fit together, or a quantized matrix whose inputs are no multiple of 32.
    """

class Embedding:
    """A table of vectors in a file's encoding; refers to ``table``, which must be C-contiguous."""

    def __init__(self, encoding: str, table: Bytes, width: int) -> None: ...

class Value:
    """Where activations lie: buffer -1 is the output; ``selected`` has a row per wanted logit."""

    def __init__(self, buffer: int, width: int, selected: bool) -> None: ...

class Cache:
    """The KV arena [frames, bytes], the rotary tables, and each layer's place.

    ``layers``: ``(block size, sliding window or 0, K tiles, V tiles)``, a tile being ``(table, offset)``.
    """

    def __init__(
        self,
        arena: Bytes,
        dtype: str,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_tables: int,
        cos: Float32s,
        sin: Float32s,
        layers: Sequence[tuple[int, int, Sequence[tuple[int, int]], Sequence[tuple[int, int]]]],
    ) -> None: ...

class Tape:
    """Operations in the order they were added; ``buffer_widths`` are float32 values per token."""

    def __init__(
        self, team: Team, isa: str, max_tokens: int, buffer_widths: Sequence[int], cache: Cache
    ) -> None: ...
    def embed(self, table: Embedding, out: Value) -> None: ...
    def rms_norm(self, x: Value, weight: Float32s, eps: float, out: Value) -> None: ...
    def head_norm(
        self, qkv: Value, first_head: int, num_heads: int, weight: Float32s, eps: float, out: Value
    ) -> None: ...
    def linear(
        self, x: Value, weight: PackedLinear, quantize_input: bool, residual: Value | None, out: Value
    ) -> None: ...
    def norm_linear(
        self,
        x: Value,
        norm_weight: Float32s,
        eps: float,
        weight: PackedLinear,
        residual: Value | None = None,
        *,
        out: Value,
    ) -> None:
        """``rms_norm``, then ``linear`` with a quantized input; all of the weights must be int4 or int8."""

    def silu_linear(
        self, x: Value, weight: PackedLinear, residual: Value | None = None, *, out: Value
    ) -> None:
        """``silu_mul``, then ``linear`` likewise."""

    def rope_and_write(self, qkv: Value, layer: int, out: Value) -> None: ...
    def paged_attention(self, q: Value, layer: int, out: Value) -> None: ...
    def silu_mul(self, gate_up: Value, out: Value) -> None: ...
    def select(self, x: Value, out: Value) -> None: ...
    def run(
        self,
        token_ids: Int32s,
        positions: Int32s,
        rows: Int32s,
        query_start: Int32s,
        context_len: Int32s,
        logit_tokens: Int32s,
        block_tables: Sequence[Int32s],
        output: Float32s,
        op_seconds: npt.NDArray[np.float64] | None = None,
    ) -> list[int]:
        """One step, without the interpreter lock.

        Where ``output`` has a row per wanted logit, returns for each the index of its largest value, the
        first of equals; -1 if some value of it is not finite.

        ``op_seconds`` [operations] receives the time of each operation, until all workers are done with it;
        the first includes their awakening.

        Raises:
            ValueError: an array of a wrong shape, dtype or value; ``output`` and the cache are untouched.
        """
    def op_names(self) -> list[str]:
        """The operations, those that run as one joined: "rms_norm+linear"."""
    def attention_pieces(self) -> list[tuple[int, list[int], int, int]]:
        """What the attention of the latest run was cut into, for one layer of each block size and window.

        Each piece is ``(row, tokens, first, end)``: so many of the step's tokens, over partitions
        ``[first, end)``, 512 keys each, of the keys that the row's block tables lead to. Tokens of several
        rows in one piece share those keys: they are read once for all.
        """

def read_memory(team: Team, isa: str, data: Bytes, passes: int = 1, is_private: bool = False) -> float:
    """Seconds that the team takes to read ``data`` [bytes] ``passes`` times.

    Workers claim chunks of it; if ``is_private``, each keeps to a share of its own and so to its core's
    caches.
    """

def multiply(team: Team, isa: str, arithmetic: str, rounds: int) -> tuple[int, float]:
    """Multiply and add in registers: "float32", "bfloat16" or "int8". Returns operations done and seconds."""

def run_empty_loops(team: Team, count: int) -> float:
    """Seconds of one parallel region of ``count`` loops with an item of no work for each worker."""
