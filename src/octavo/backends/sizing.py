"""A backend that computes nothing: it counts what the native one would take, from shapes and encodings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from octavo import _native
from octavo.backends.base import Ops
from octavo.backends.cpu import quantizes_input
from octavo.backends.recorder import Embedding, Linear, Recorder, Value, Vector, Weight, assign_buffers, fuse
from octavo.core.config import Activations
from octavo.weights.encoding import row_bytes
from octavo.weights.tensor import WeightTensor

_PANEL: Final = 16  # outputs that lie together, filled up; see native/packing.hpp
_GROUP: Final = 32
_QUANTIZED_GROUP_BYTES: Final = 64  # of a layer's input: 32 values with scale and sums

# Packed bytes of one output: of 32 codes, and of the scales of so many values; native/blocks.hpp.
_PACKED: Final = {
    "Q8_0": (32, 32, 2),
    "Q4_0": (16, 32, 2),
    "Q4_1": (16, 32, 4),
    "Q5_0": (32, 32, 2),
    "Q5_1": (32, 32, 4),
    "Q2_K": (16, 256, 4 + 8 * 4),
    "Q3_K": (16, 256, 2 + 8 * 2),
    "Q4_K": (16, 256, 4 + 8 * 2),
    "Q5_K": (32, 256, 4 + 8 * 2),
    "Q6_K": (32, 256, 2 + 8 * 2),
}


def packed_bytes(weight: WeightTensor) -> int:
    """Bytes that a matrix takes in a packed linear layer, of whatever data it has."""
    num_outputs, num_inputs = weight.shape
    num_places = -(-num_outputs // _PANEL) * _PANEL
    if weight.encoding in _PACKED:
        code_bytes, block_values, scale_bytes = _PACKED[weight.encoding]
        of_output = num_inputs // _GROUP * code_bytes + num_inputs // block_values * scale_bytes
    elif weight.encoding == "BF16":
        of_output = (num_inputs + 1) // 2 * 4
    else:
        of_output = row_bytes(weight.encoding, num_inputs)
    return -(-num_places * of_output // 64) * 64


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a recorder asks of a packed layer."""

    num_inputs: int
    num_outputs: int
    all_quantized: bool


class SizingBackend:
    """Counts while it is given weights.

    Attributes:
        linear_bytes: packed linear layers.
        embedding_bytes: the table, read row by row where the file holds it.
        vector_bytes: norms and biases, as float32.
    """

    def __init__(self, activations: Activations = "auto") -> None:
        self.linear_bytes = 0
        self.embedding_bytes = 0
        self.vector_bytes = 0
        self._activations = activations
        self._quantized_inputs = [0]

    def load_linear(self, weights: Sequence[WeightTensor], biases: Sequence[WeightTensor] = ()) -> Weight:
        """One linear layer."""
        self.linear_bytes += sum(map(packed_bytes, weights))
        self.vector_bytes += sum(4 * bias.shape[0] for bias in biases)
        shape = _Shape(
            num_inputs=weights[0].shape[1],
            num_outputs=sum(weight.shape[0] for weight in weights),
            all_quantized=all(weight.encoding in _PACKED for weight in weights),
        )
        quantize = quantizes_input(self._activations, all_bf16=all(w.encoding == "BF16" for w in weights))
        if quantize:
            self._quantized_inputs.append(shape.num_inputs)
        return Linear(cast(_native.PackedLinear, shape), quantize_input=quantize)

    def load_embedding(self, table: WeightTensor) -> Weight:
        """The embedding table."""
        num_rows, width = table.shape
        self.embedding_bytes += num_rows * row_bytes(table.encoding, width)
        return Embedding(cast(_native.Embedding, None), width)

    def load_vector(self, vector: WeightTensor) -> Weight:
        """A norm's weight."""
        self.vector_bytes += 4 * vector.shape[0]
        return Vector(np.empty(0, np.float32))  # nobody looks at the values

    def scratch_bytes(
        self, forward: Callable[[Ops[Value, Weight]], Value], *, q_width: int, max_tokens: int, threads: int
    ) -> int:
        """What steps of up to ``max_tokens`` tokens keep between operations. Attention has a little more."""
        recorder = Recorder(q_width=q_width)
        result = forward(recorder)
        buffers = 4 * max_tokens * sum(assign_buffers(fuse(recorder.records), result).widths)
        groups = -(-max(self._quantized_inputs) // _GROUP)
        return buffers + max(max_tokens, 2 * threads) * groups * _QUANTIZED_GROUP_BYTES
