"""What a forward pass has to read, write and compute: the operations once more, on sizes alone.

Bytes are told apart by where they come from. *Streamed* bytes are weights, embedding rows and K and V: read
once per step and usually from beyond the caches. *Activation* bytes pass from one operation to the next.
Legend: T step tokens, S logits wanted, K inputs and N outputs of a layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from octavo.attention.plan import StepInputs
from octavo.bench.ceilings import Arithmetic
from octavo.core.config import Activations
from octavo.storage.layout import DTYPE_BYTES, KVLayout, StorageDtype
from octavo.weights.tensor import BLOCK_OF, WeightTensor

_FLOAT_BYTES = 4
_PANEL = 16  # outputs that the kernels pack together; a layer is padded to a multiple
# Of the encodings whose blocks take more once they are packed: 5 and 6 bits as 8, 2 and 3 as 4.
_PACKED_BYTES = {"Q5_0": 34, "Q5_1": 36, "Q2_K": 164, "Q3_K": 146, "Q4_K": 148, "Q5_K": 276, "Q6_K": 274}

# What attention multiplies in: float16 is widened.
KV_ARITHMETIC: Final[dict[StorageDtype, Arithmetic]] = {
    "bfloat16": "bfloat16",
    "float16": "float32",
    "float32": "float32",
    "int8": "int8",
}


def token_kv_bytes(dtype: StorageDtype, num_kv_heads: int, head_dim: int) -> int:
    """K and V of one token in one layer; int8 ones with their float32 scales."""
    scale_bytes = _FLOAT_BYTES if dtype == "int8" else 0
    return 2 * num_kv_heads * (head_dim * DTYPE_BYTES[dtype] + scale_bytes)


@dataclass(frozen=True, slots=True)
class OpCount:
    """One operation of one step.

    Attributes:
        kind: its name in ``Ops``.
        label: which of them, the same in every layer.
        activation_bytes: those it reads and those it writes; ``output_bytes`` are the latter.
        operations: multiplications and additions of its products; the rest of its arithmetic is not counted.
        arithmetic: what they are done in.
    """

    kind: str
    label: str
    streamed_bytes: int
    activation_bytes: int
    output_bytes: int
    operations: int = 0
    arithmetic: Arithmetic = "float32"


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight's size: of a matrix [N, K], an embedding [vocab, K] or a vector [K]."""

    num_outputs: int
    num_inputs: int
    num_bytes: int
    arithmetic: Arithmetic = "float32"


@dataclass(frozen=True, slots=True)
class Value:
    """An activation matrix: its width, whether it has a row per wanted logit, which operation it is from."""

    width: int
    selected: bool
    source: int


@dataclass(frozen=True, slots=True)
class CountingLoader:
    """Turns weights into their sizes, as ``Backend`` turns them into handles."""

    activations: Activations = "auto"

    def load_linear(self, weights: Sequence[WeightTensor], biases: Sequence[WeightTensor] = ()) -> Weight:
        """Outputs of ``weights`` one after the other."""
        num_bytes = sum(b.shape[0] * _FLOAT_BYTES for b in biases)
        quantized = False
        for w in weights:
            values, block_bytes = BLOCK_OF[w.encoding]
            block_bytes = _PACKED_BYTES.get(w.encoding, block_bytes)
            num_bytes += -(-w.shape[0] // _PANEL) * _PANEL * w.shape[1] // values * block_bytes
            quantized |= values > 1
        arithmetic: Arithmetic = "float32"
        if quantized and self.activations != "float32":
            arithmetic = "int8"
        elif all(w.encoding == "BF16" for w in weights):
            arithmetic = "bfloat16"
        return Weight(sum(w.shape[0] for w in weights), weights[0].shape[1], num_bytes, arithmetic)

    def load_embedding(self, table: WeightTensor) -> Weight:
        """An embedding [vocab, hidden]."""
        return Weight(table.shape[0], table.shape[1], table.num_bytes)

    def load_vector(self, vector: WeightTensor) -> Weight:
        """A norm's weight, kept as float32."""
        return Weight(1, vector.shape[-1], vector.shape[-1] * _FLOAT_BYTES)


@dataclass(slots=True)
class CountingOps:
    """The operations of ``Ops`` for one step: each call appends what it costs.

    Attributes:
        windows: sliding window of each layer in tokens, or None.
        counts: the operations so far, in their order.
    """

    step: StepInputs
    layout: KVLayout
    num_heads: int
    windows: Sequence[int | None]
    counts: list[OpCount] = field(default_factory=list)
    _kv_tokens: dict[tuple[int, int, int | None], int] = field(default_factory=dict)

    def embed(self, table: Weight) -> Value:
        """Reads a row of the table per token."""
        num_tokens, width = self.step.num_tokens, table.num_inputs
        row_bytes = table.num_bytes // table.num_outputs
        num_bytes = num_tokens * width * _FLOAT_BYTES
        return self._append(OpCount("embed", "embed", num_tokens * row_bytes, num_bytes, num_bytes), width)

    def rms_norm(self, x: Value, weight: Weight, eps: float) -> Value:
        """Reads and writes its argument."""
        num_bytes = self._bytes(x)
        count = OpCount("rms_norm", "rms_norm", weight.num_bytes, 2 * num_bytes, num_bytes)
        return self._append(count, x.width, x.selected)

    def head_norm(self, qkv: Value, first_head: int, num_heads: int, weight: Weight, eps: float) -> Value:
        """Reads and writes the heads it is for."""
        self._label(qkv, "qkv")
        share = self._bytes(qkv) // qkv.width * num_heads * self.layout.head_dim
        count = OpCount("head_norm", "head_norm", weight.num_bytes, 2 * share, share)
        return self._append(count, qkv.width)

    def linear(self, x: Value, weight: Weight, residual: Value | None = None) -> Value:
        """Reads all weights, its input, the residual; writes its output. 2 K N operations per row."""
        label = {"paged_attention": "output", "silu_mul": "down"}.get(self.counts[x.source].kind, "linear")
        rows = self._num_rows(x)
        widths = weight.num_inputs + weight.num_outputs * (1 if residual is None else 2)
        count = OpCount(
            "linear",
            "lm_head" if x.selected else label,
            weight.num_bytes,
            rows * widths * _FLOAT_BYTES,
            rows * weight.num_outputs * _FLOAT_BYTES,
            2 * rows * weight.num_inputs * weight.num_outputs,
            weight.arithmetic,
        )
        return self._append(count, weight.num_outputs, x.selected)

    def rope_and_write(self, qkv: Value, layer: int) -> Value:
        """Reads q, k and v; writes q, and k and v to the cache."""
        self._label(qkv, "qkv")
        q_width = self.num_heads * self.layout.head_dim
        num_tokens = self.step.num_tokens
        count = OpCount(
            "rope_and_write",
            "rope_and_write",
            num_tokens * self._token_kv_bytes(),
            num_tokens * (qkv.width + q_width) * _FLOAT_BYTES,
            num_tokens * q_width * _FLOAT_BYTES,
        )
        return self._append(count, q_width)

    def paged_attention(self, q: Value, layer: int) -> Value:
        """Reads the K and V that any token of the step sees, once. 4 D Hq operations per token and key."""
        count = OpCount(
            "paged_attention",
            "paged_attention",
            self._num_kv_tokens(layer) * self._token_kv_bytes(),
            2 * self._bytes(q),
            self._bytes(q),
            4 * self.layout.head_dim * self.num_heads * self._num_visible(self.windows[layer]),
            KV_ARITHMETIC[self.layout.dtype],
        )
        return self._append(count, q.width)

    def silu_mul(self, gate_up: Value) -> Value:
        """Reads both halves, writes one."""
        self._label(gate_up, "gate_up")
        num_bytes = self._bytes(gate_up) // 2
        count = OpCount("silu_mul", "silu_mul", 0, 3 * num_bytes, num_bytes)
        return self._append(count, gate_up.width // 2, gate_up.selected)

    def select(self, x: Value) -> Value:
        """Copies the rows whose logits are wanted."""
        num_bytes = len(self.step.logit_tokens) * x.width * _FLOAT_BYTES
        return self._append(OpCount("select", "select", 0, 2 * num_bytes, num_bytes), x.width, True)

    def _append(self, count: OpCount, width: int, selected: bool = False) -> Value:
        self.counts.append(count)
        return Value(width, selected, len(self.counts) - 1)

    def _label(self, value: Value, label: str) -> None:
        """Name a linear layer after what its output is for."""
        source = self.counts[value.source]
        if source.kind == "linear":
            self.counts[value.source] = replace(source, label=label)

    def _num_rows(self, x: Value) -> int:
        return len(self.step.logit_tokens) if x.selected else self.step.num_tokens

    def _bytes(self, x: Value) -> int:
        return self._num_rows(x) * x.width * _FLOAT_BYTES

    def _token_kv_bytes(self) -> int:
        layout = self.layout
        return token_kv_bytes(layout.dtype, layout.num_kv_heads, layout.head_dim)

    def _num_visible(self, window: int | None) -> int:
        """Keys seen, summed over the step's tokens."""
        seen = self.step.positions.astype(np.int64) + 1
        return int(np.minimum(seen, window).sum() if window else seen.sum())

    def _num_kv_tokens(self, layer: int) -> int:
        """Tokens whose K and V some token of the step sees; those of a block that rows share count once."""
        tiles, window = self.layout.layers[layer], self.windows[layer]
        key = (tiles.k_tiles[0].table, tiles.block_size, window)
        if key not in self._kv_tokens:
            table, size = self.step.block_tables[key[0]], tiles.block_size
            seen: dict[int, int] = {}
            starts = self.step.query_start
            for i, row in enumerate(self.step.rows):
                context = int(self.step.context_len[i])
                end = context + int(starts[i + 1] - starts[i])
                first = max(0, context + 1 - window) if window else 0
                for index in range(first // size, -(-end // size)):
                    tokens = min(end, (index + 1) * size) - max(first, index * size)
                    block = int(table[row, index])
                    seen[block] = max(tokens, seen.get(block, 0))
            self._kv_tokens[key] = sum(seen.values())
        return self._kv_tokens[key]


def join_counts(counts: Sequence[OpCount], op_names: Sequence[str]) -> list[OpCount]:
    """Costs of operations as a program runs them: of those that run as one, what lies between is not moved.

    Args:
        counts: one per operation of the forward pass.
        op_names: the program's operations; those of several kinds are joined by a plus sign.

    Raises:
        ValueError: the two are not of the same forward pass.
    """
    joined: list[OpCount] = []
    rest = iter(counts)
    for name in op_names:
        kinds = name.split("+")
        parts = [count for _, count in zip(kinds, rest, strict=False)]
        if [count.kind for count in parts] != kinds:
            raise ValueError(f"{name}: counted {'+'.join(count.kind for count in parts)} in its place")
        last = parts[-1]
        between = 2 * sum(count.output_bytes for count in parts[:-1])
        joined.append(
            OpCount(
                name,
                " + ".join(count.label for count in parts),
                sum(count.streamed_bytes for count in parts),
                sum(count.activation_bytes for count in parts) - between,
                last.output_bytes,
                sum(count.operations for count in parts),
                last.arithmetic,
            )
        )
    if left := list(rest):
        raise ValueError(f"{len(left)} operations counted beyond the program's {len(op_names)}")
    return joined
