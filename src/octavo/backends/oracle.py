"""The operations in NumPy float64, each in the most obvious way: what other backends are measured against.

K and V lie in the arena's own tiles, rounded to its element type; with float32 the rounding is far below any
tolerance asked of a kernel. Everything else is float64.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.attention.oracle import paged_attention, rotate
from octavo.attention.plan import StepInputs
from octavo.backends.base import AttentionShape, FloatArray, Ops
from octavo.storage.arena import Arena
from octavo.storage.codec import write_kv
from octavo.weights.encoding import dequantize
from octavo.weights.tensor import WeightTensor

X = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix [outputs, inputs], an embedding or a vector, with a bias or without."""

    values: X
    bias: X | None = None


class OracleBackend:
    """Runs a forward function anew each step; see ``backends/base.py`` for the operations."""

    def load_linear(self, weights: Sequence[WeightTensor], biases: Sequence[WeightTensor] = ()) -> Weights:
        """Outputs of ``weights`` one after the other; biases of all of them or of none."""
        return Weights(
            np.concatenate([dequantize(w).astype(np.float64) for w in weights]),
            np.concatenate([dequantize(b).astype(np.float64) for b in biases]) if biases else None,
        )

    def load_embedding(self, table: WeightTensor) -> Weights:
        """An embedding [vocab, hidden]."""
        return Weights(dequantize(table).astype(np.float64))

    def load_vector(self, vector: WeightTensor) -> Weights:
        """A norm's weight."""
        return Weights(dequantize(vector).astype(np.float64))

    def compile(
        self,
        forward: Callable[[Ops[X, Weights]], X],
        *,
        arena: Arena,
        attention: AttentionShape,
        max_tokens: int,
    ) -> "OracleProgram":
        """A program that takes any number of tokens."""
        return OracleProgram(lambda step: forward(OracleOps(step, arena, attention)).astype(np.float32))


class OracleProgram:
    """A function of a step's inputs, and what ``base.Program`` tells of its result."""

    def __init__(self, compute: Callable[[StepInputs], FloatArray]) -> None:
        self.largest: list[int] = []
        self._compute = compute

    def __call__(self, step: StepInputs) -> FloatArray:
        """The step's logits."""
        logits = self._compute(step)
        self.largest = largest(logits)
        return logits


def largest(rows: FloatArray) -> list[int]:
    """Index of each row's largest value, the first of equals; -1 if some value of it is not finite."""
    indices: list[int] = np.where(np.isfinite(rows).all(axis=1), rows.argmax(axis=1), -1).tolist()
    return indices


class OracleOps:
    """The operations of one step, as ``Ops`` describes them."""

    def __init__(self, step: StepInputs, arena: Arena, attention: AttentionShape) -> None:
        self._step = step
        self._arena = arena
        self._attention = attention

    def embed(self, table: Weights) -> X:  # noqa: D102
        return table.values[self._step.token_ids]

    def rms_norm(self, x: X, weight: Weights, eps: float) -> X:  # noqa: D102
        out: X = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight.values
        return out

    def head_norm(self, qkv: X, first_head: int, num_heads: int, weight: Weights, eps: float) -> X:  # noqa: D102
        heads = self._heads(qkv).copy()
        chosen = slice(first_head, first_head + num_heads)
        heads[:, chosen] = self.rms_norm(heads[:, chosen], weight, eps)
        return heads.reshape(qkv.shape)

    def linear(self, x: X, weight: Weights, residual: X | None = None) -> X:  # noqa: D102
        out: X = x @ weight.values.T
        if weight.bias is not None:
            out = out + weight.bias
        return out if residual is None else out + residual

    def rope_and_write(self, qkv: X, layer: int) -> X:  # noqa: D102
        step, attention = self._step, self._attention
        num_heads, num_kv_heads = attention.num_heads, self._arena.layout.num_kv_heads
        heads = self._heads(qkv)
        qk, v = heads[:, : num_heads + num_kv_heads], heads[:, num_heads + num_kv_heads :]
        qk = rotate(qk, attention.cos[step.positions], attention.sin[step.positions])
        for i, row in enumerate(step.rows):
            tokens = slice(step.query_start[i], step.query_start[i + 1])
            write_kv(
                self._arena,
                layer,
                step.block_tables,
                int(row),
                int(step.context_len[i]),
                k=qk[tokens, num_heads:],
                v=v[tokens],
            )
        return qk[:, :num_heads].reshape(len(qkv), -1)

    def paged_attention(self, q: X, layer: int) -> X:  # noqa: D102
        window = self._attention.windows[layer]
        out = paged_attention(self._heads(q), self._step, self._arena, layer, window=window)
        return out.reshape(q.shape)

    def silu_mul(self, gate_up: X) -> X:  # noqa: D102
        gate, up = np.split(gate_up, 2, axis=-1)
        out: X = gate / (1 + np.exp(-gate)) * up
        return out

    def select(self, x: X) -> X:  # noqa: D102
        return x[self._step.logit_tokens]

    def _heads(self, x: X) -> X:
        return x.reshape(len(x), -1, self._arena.layout.head_dim)
