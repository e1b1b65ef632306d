"""The decoder: one forward pass for every family, written in the operations of ``backends/base.py``."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.backends.base import AttentionShape, Backend, Ops
from octavo.models.rope import rope_tables
from octavo.models.spec import DecoderSpec
from octavo.models.weights import DecoderWeights, LayerWeights

X = TypeVar("X")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class _Layer(Generic[W]):
    """One layer's handles of the backend."""

    attention_norm: W
    qkv: W
    q_norm: W | None
    k_norm: W | None
    output: W
    mlp_norm: W
    gate_up: W
    down: W


class Decoder(Generic[X, W]):
    """A decoder whose weights a backend has prepared.

    Attributes:
        spec: the model's sizes and switches.
    """

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights, backend: Backend[X, W]) -> None:
        self.spec = spec
        self._embedding = backend.load_embedding(weights.embedding)
        self._layers = [_prepare(layer, backend) for layer in weights.layers]
        self._final_norm = backend.load_vector(weights.final_norm)
        self._lm_head = backend.load_linear([weights.lm_head])

    def forward(self, ops: Ops[X, W]) -> X:
        """Logits [S, vocab] of the step's ``logit_tokens``; K and V of all its tokens go to the cache."""
        spec, eps = self.spec, self.spec.norm_eps
        x = ops.embed(self._embedding)
        for index, layer in enumerate(self._layers):
            qkv = ops.linear(ops.rms_norm(x, layer.attention_norm, eps), layer.qkv)
            if layer.q_norm is not None and layer.k_norm is not None:
                qkv = ops.head_norm(qkv, 0, spec.num_heads, layer.q_norm, eps)
                qkv = ops.head_norm(qkv, spec.num_heads, spec.num_kv_heads, layer.k_norm, eps)
            q = ops.rope_and_write(qkv, index)
            x = ops.linear(ops.paged_attention(q, index), layer.output, residual=x)
            gate_up = ops.linear(ops.rms_norm(x, layer.mlp_norm, eps), layer.gate_up)
            x = ops.linear(ops.silu_mul(gate_up), layer.down, residual=x)
        x = ops.rms_norm(ops.select(x), self._final_norm, eps)
        return ops.linear(x, self._lm_head)

    def attention_shape(self, max_positions: int) -> AttentionShape:
        """What attention has to know, with rotary tables for positions below ``max_positions``."""
        cos, sin = rope_tables(self.spec.rope, max_positions)
        windows = tuple(self.spec.window(layer) for layer in range(self.spec.num_layers))
        return AttentionShape(self.spec.num_heads, windows, cos, sin)


def _prepare(layer: LayerWeights, backend: Backend[X, W]) -> _Layer[W]:
    return _Layer(
        attention_norm=backend.load_vector(layer.attention_norm),
        qkv=backend.load_linear(layer.qkv, layer.qkv_bias),
        q_norm=None if layer.q_norm is None else backend.load_vector(layer.q_norm),
        k_norm=None if layer.k_norm is None else backend.load_vector(layer.k_norm),
        output=backend.load_linear(layer.output, layer.output_bias),
        mlp_norm=backend.load_vector(layer.mlp_norm),
        gate_up=backend.load_linear(layer.gate_up, layer.gate_up_bias),
        down=backend.load_linear(layer.down, layer.down_bias),
    )
