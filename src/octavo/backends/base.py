"""The closed set of operations a model is written in, and what a backend has to offer.

A backend turns weights into handles of its own, and a model's forward function into a callable that runs one
step. ``oracle`` runs the function anew each step on float64 arrays; ``cpu`` runs it once with a recorder and
replays the recorded operations natively. The function is the same, and written once (``models/decoder.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.storage.arena import Arena
from octavo.weights.tensor import WeightTensor

X = TypeVar("X")  # activations: [T, width], whatever the backend holds them in
W = TypeVar("W")  # a prepared linear layer, an embedding or a vector: a backend's own handle
W_contra = TypeVar("W_contra", contravariant=True)  # the same where it is only taken

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the attention operations need to know of the model.

    Attributes:
        num_heads: Hq.
        windows: sliding window of each layer in tokens, or None.
        cos, sin: float32 [max positions, rotary_dim / 2], already multiplied by the attention factor if the
            scaling variant has one. Dimension i rotates with i + rotary_dim / 2; dimensions from rotary_dim
            on are left alone.
    """

    num_heads: int
    windows: tuple[int | None, ...]
    cos: FloatArray
    sin: FloatArray


class Ops(Protocol[X, W_contra]):
    """The operations. T step tokens; x is [T, width]; nothing here changes its arguments but the KV cache."""

    def embed(self, table: W_contra) -> X:
        """Rows of ``table`` for the step's token ids: [T, hidden]."""
        ...

    def rms_norm(self, x: X, weight: W_contra, eps: float) -> X:
        """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis."""
        ...

    def head_norm(self, qkv: X, first_head: int, num_heads: int, weight: W_contra, eps: float) -> X:
        """RMS norm of each of ``num_heads`` heads of ``qkv`` from ``first_head`` on; the rest unchanged."""
        ...

    def linear(self, x: X, weight: W_contra, residual: X | None = None) -> X:
        """``x @ weight.T + bias (+ residual)``: [T, outputs]."""
        ...

    def rope_and_write(self, qkv: X, layer: int) -> X:
        """Rotate q and k by their positions, write k and v to the layer's slots, return q [T, Hq * D].

        ``qkv`` is [T, (Hq + 2 Hkv) * D], heads of q, then of k, then of v.
        """
        ...

    def paged_attention(self, q: X, layer: int) -> X:
        """Causal softmax attention of each token over the KV of its row up to itself: [T, Hq * D].

        KV head of query head h is ``h // (Hq / Hkv)``; scale 1 / sqrt(D); the layer's sliding window w
        lets position p see positions above p - w.
        """
        ...

    def silu_mul(self, gate_up: X) -> X:
        """``silu(gate) * up`` of the two halves of [T, 2 I]: [T, I]."""
        ...

    def select(self, x: X) -> X:
        """The rows of ``x`` at ``logit_tokens``: [S, width]."""
        ...


class Program(Protocol):
    """A compiled forward pass."""

    @property
    def largest(self) -> list[int]:
        """Of each row of the latest result the index of its largest value, the first of equals.

        -1 if some value of the row is not finite.
        """
        ...

    def __call__(self, step: StepInputs, /) -> FloatArray:
        """The step's logits, float32 [S, vocab]; the next call may reuse the array."""
        ...


class Backend(Protocol[X, W]):
    """One implementation of the operations, bound to a KV arena and a rotary table."""

    def load_linear(self, weights: Sequence[WeightTensor], biases: Sequence[WeightTensor] = ()) -> W:
        """Prepare one linear layer whose outputs are those of ``weights``, one after the other."""
        ...

    def load_embedding(self, table: WeightTensor) -> W:
        """Prepare an embedding table [vocab, hidden]."""
        ...

    def load_vector(self, vector: WeightTensor) -> W:
        """Prepare a norm's weight."""
        ...

    def compile(
        self,
        forward: Callable[[Ops[X, W]], X],
        *,
        arena: Arena,
        attention: AttentionShape,
        max_tokens: int,
    ) -> Program:
        """Make ``forward`` a program from a step's inputs to its logits."""
        ...
