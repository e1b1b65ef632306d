"""The weights of a decoder, taken out of a checkpoint by name, each checked against the spec."""

from dataclasses import dataclass

import numpy as np

from octavo.core.errors import CorruptModel, UnsupportedModel
from octavo.models.families import NAMES
from octavo.models.gguf_config import INTERLEAVED
from octavo.models.spec import DecoderSpec
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.encoding import permute_rows
from octavo.weights.tensor import WeightTensor

Tensors = tuple[WeightTensor, ...]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [outputs, inputs]; what runs as one linear layer stands together.

    Attributes:
        qkv, qkv_bias: q, k, v; the biases are empty if the family has none.
        q_norm, k_norm: [D], or None.
        output, output_bias: attention output; the bias is empty or one vector.
        gate_up, gate_up_bias: gate, up.
    """

    attention_norm: WeightTensor
    qkv: Tensors
    qkv_bias: Tensors
    q_norm: WeightTensor | None
    k_norm: WeightTensor | None
    output: Tensors
    output_bias: Tensors
    mlp_norm: WeightTensor
    gate_up: Tensors
    gate_up_bias: Tensors
    down: Tensors
    down_bias: Tensors


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder; ``lm_head`` is ``embedding`` itself where the two are tied."""

    embedding: WeightTensor
    layers: tuple[LayerWeights, ...]
    final_norm: WeightTensor
    lm_head: WeightTensor


def take_weights(checkpoint: Checkpoint, spec: DecoderSpec) -> DecoderWeights:
    """Find every weight that ``spec`` asks for.

    Rows of q and k are in the order of half rotation (dimension i turns with i + D / 2), whatever the file's.

    Raises:
        CorruptModel: a tensor is missing or of another shape than the spec says.
        UnsupportedModel: the file has tensors that this decoder has no use for.
    """
    taker = _Taker(checkpoint, spec)
    layers = tuple(taker.layer(i) for i in range(spec.num_layers))
    embedding = taker.take(taker.names.embedding, spec.vocab_size, spec.hidden_size)
    final_norm = taker.take(taker.names.final_norm, spec.hidden_size)
    if spec.tied_embeddings:
        taker.used.add(taker.names.lm_head)  # some files repeat the embedding under this name
        lm_head = embedding
    else:
        lm_head = taker.take(taker.names.lm_head, spec.vocab_size, spec.hidden_size)
    taker.check_all_used()
    return DecoderWeights(embedding, layers, final_norm, lm_head)


class _Taker:
    """Takes tensors out of a checkpoint and remembers which."""

    def __init__(self, checkpoint: Checkpoint, spec: DecoderSpec) -> None:
        self.names = NAMES[checkpoint.kind]
        self.used: set[str] = set()
        self._checkpoint = checkpoint
        self._spec = spec
        self._interleaved = checkpoint.metadata.get("general.architecture") in INTERLEAVED

    def layer(self, index: int) -> LayerWeights:
        spec = self._spec
        hidden, inner = spec.hidden_size, spec.intermediate_size
        q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

        def weight(part: str, *shape: int) -> WeightTensor:
            return self.take(self.names.of(part, index), *shape)

        def biases(wanted: bool, **sizes: int) -> Tensors:
            names = [(self.names.of(part, index, "bias"), size) for part, size in sizes.items()]
            return tuple(self.take(name, size) for name, size in names) if wanted else ()

        qkv = (weight("q", q, hidden), weight("k", kv, hidden), weight("v", kv, hidden))
        qkv_bias = biases(spec.qkv_bias, q=q, k=kv, v=kv)
        return LayerWeights(
            attention_norm=weight("attention_norm", hidden),
            qkv=self._half_rotation(qkv),
            qkv_bias=self._half_rotation(qkv_bias),
            q_norm=weight("q_norm", spec.head_dim) if spec.qk_norm else None,
            k_norm=weight("k_norm", spec.head_dim) if spec.qk_norm else None,
            output=(weight("output", hidden, q),),
            output_bias=biases(spec.output_bias, output=hidden),
            mlp_norm=weight("mlp_norm", hidden),
            gate_up=(weight("gate", inner, hidden), weight("up", inner, hidden)),
            gate_up_bias=biases(spec.mlp_bias, gate=inner, up=inner),
            down=(weight("down", hidden, inner),),
            down_bias=biases(spec.mlp_bias, down=hidden),
        )

    def take(self, name: str, *shape: int) -> WeightTensor:
        if name not in self._checkpoint.tensors:
            raise CorruptModel(f"{self._checkpoint.path}: tensor {name} is missing")
        tensor = self._checkpoint.tensors[name]
        if tensor.shape != shape:
            raise CorruptModel(
                f"{self._checkpoint.path}: tensor {name} has shape {list(tensor.shape)}; the model's"
                f" configuration asks for {list(shape)}"
            )
        self.used.add(name)
        return tensor

    def check_all_used(self) -> None:
        left = [
            name
            for name in self._checkpoint.tensors
            if name not in self.used and not name.endswith(self.names.derived)
        ]
        if left:
            named = ", ".join(sorted(left)[:5]) + (", ..." if len(left) > 5 else "")
            raise UnsupportedModel(
                f"{self._checkpoint.path}: a {self._spec.family} model as Octavo knows it has no use for"
                f" {len(left)} of the file's tensors: {named}"
            )

    def _half_rotation(self, qkv: Tensors) -> Tensors:
        """Undo the row order of llama's GGUF files, where 2 i and 2 i + 1 hold the pair (i, i + D / 2)."""
        if not qkv or not self._interleaved:
            return qkv
        dim = self._spec.head_dim
        head = np.concatenate([np.arange(0, dim, 2), np.arange(1, dim, 2)])
        q, k, v = qkv

        def reorder(tensor: WeightTensor, num_heads: int) -> WeightTensor:
            rows = (np.arange(num_heads)[:, None] * dim + head).reshape(-1)
            return permute_rows(tensor, rows)

        return reorder(q, self._spec.num_heads), reorder(k, self._spec.num_kv_heads), v
