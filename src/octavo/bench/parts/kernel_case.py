"""What the kernel benchmarks share: sizes of models, a case to measure, programs of a few operations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.backends.base import AttentionShape
from octavo.backends.cpu import CpuBackend, Program
from octavo.backends.recorder import Recorder, Value
from octavo.bench.ceilings import Arithmetic
from octavo.bench.parts.random_weights import float_tensor
from octavo.storage.arena import Arena
from octavo.storage.layout import KVLayout

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes of a model that its kernels see."""

    name: str
    hidden: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each linear layer, those that run as one together."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "qkv": (q + 2 * kv, self.hidden),
            "output": (self.hidden, q),
            "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
            "lm_head": (self.vocab_size, self.hidden),
        }


SMOLLM2 = ModelSize("SmolLM2-135M", 576, 1536, 9, 3, 64, 49152)
QWEN3 = ModelSize("Qwen3-0.6B", 1024, 3072, 16, 8, 128, 151936)
MODELS = (SMOLLM2, QWEN3)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel at one size.

    Attributes:
        kernel: the operation's name in ``Ops``.
        parameters: what distinguishes the case, for the report.
        check: the error of its result, relative to the oracle's (root of the mean squares).
        tolerance: the largest error that the kernel's own rounding explains.
        run: seconds per operation; successive runs go round the working set.
        streamed_bytes, activation_bytes, operations, arithmetic: of one operation; see ``OpCount``.
        working_set: bytes that successive runs read before they come back to the first.
    """

    kernel: str
    name: str
    parameters: dict[str, Any]
    check: Callable[[], float]
    tolerance: float
    run: Callable[[], float]
    working_set: int
    streamed_bytes: int = 0
    activation_bytes: int = 0
    operations: int = 0
    arithmetic: Arithmetic = "float32"


@dataclass(slots=True)
class Rotation:
    """Programs and steps that take turns: each loads its input, then does one operation several times."""

    turns: list[tuple[Program, StepInputs]]
    _next: int = 0

    def run(self) -> float:
        """Seconds per operation of the next turn."""
        program, step = self.turns[self._next]
        self._next = (self._next + 1) % len(self.turns)
        seconds = np.zeros(len(program.op_names))
        program(step, seconds)
        return float(seconds[1:].mean())

    def warm_up(self) -> None:
        """Run every turn once: memory is there from its first use on."""
        for _ in self.turns:
            self.run()


def compile_ops(
    backend: CpuBackend,
    x: F32,
    body: Callable[[Recorder, Value], Value],
    *,
    arena: Arena | None = None,
    attention: AttentionShape | None = None,
) -> Program:
    """A program that loads ``x`` [T, width] through an embedding of float32, then does what ``body`` says."""
    table = backend.load_embedding(float_tensor(x))
    program = backend.compile(
        lambda ops: body(ops, ops.embed(table)),  # type: ignore[arg-type]
        arena=arena or _no_cache(),
        attention=attention
        or AttentionShape(1, (None,), np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32)),
        max_tokens=len(x),
    )
    assert isinstance(program, Program)
    return program


def plain_step(num_tokens: int) -> StepInputs:
    """A step of token ids 0, 1, 2, ... in one row, for operations that read no cache."""
    return StepInputs.build([(0, 0, list(range(num_tokens)), False)], (np.zeros((1, 1), np.int32),))


def relative_error(got: npt.NDArray[np.floating], expected: F64) -> float:
    """Root of the mean squared error over that of what is expected; infinite if anything is no number."""
    error = float(np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)))
    return error if np.isfinite(error) else float("inf")


def _no_cache() -> Arena:
    return Arena(
        KVLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=16, block_size=8, dtype="float32"), 2
    )
