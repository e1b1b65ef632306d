"""Shared by the kernel tests: weights in every encoding, programs of a few operations on given inputs."""

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.attention.plan import StepInputs
from octavo.backends.base import AttentionShape
from octavo.backends.cpu import CpuBackend, Recorder, Value
from octavo.storage.arena import Arena
from octavo.storage.layout import KVLayout
from octavo.weights.tensor import BLOCK_OF, Encoding, WeightTensor

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

ISAS = _native.available_isas()
FMA_ISAS = [isa for isa in ISAS if isa != "generic"]
FLOATS: tuple[Encoding, ...] = ("F32", "F16", "BF16")
BLOCKS: tuple[Encoding, ...] = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")  # of 32 values
SUPERBLOCKS: tuple[Encoding, ...] = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")  # of 256
ENCODINGS = FLOATS + BLOCKS + SUPERBLOCKS

# Where the float16 numbers of a block lie, and their size where values are to be about 1.
HALVES: dict[str, tuple[tuple[int, float], ...]] = {
    "Q8_0": ((0, 1 / 128),),
    "Q4_0": ((0, 1 / 8),),
    "Q4_1": ((0, 1 / 8), (2, 1.0)),
    "Q5_0": ((0, 1 / 16),),
    "Q5_1": ((0, 1 / 16), (2, 1.0)),
    "Q2_K": ((80, 1 / 16), (82, 1 / 16)),
    "Q3_K": ((108, 1 / 64),),
    "Q4_K": ((0, 1 / 256), (2, 1 / 64)),
    "Q5_K": ((0, 1 / 512), (2, 1 / 64)),
    "Q6_K": ((208, 1 / 2048),),
}


def float_tensor(values: F32, name: str = "w") -> WeightTensor:
    values = np.ascontiguousarray(values, np.float32)
    return WeightTensor(name, "F32", values.shape, np.atleast_2d(values).view(np.uint8))


def random_tensor(rng: np.random.Generator, encoding: Encoding, n: int, k: int) -> tuple[WeightTensor, F64]:
    """A random matrix in ``encoding``, and the values that its bytes mean by the gguf library."""
    scale = 1 / np.sqrt(k)
    if encoding in ("F32", "F16", "BF16"):
        values = (rng.standard_normal((n, k)) * scale).astype(np.float32)
        if encoding == "F32":
            data = values.view(np.uint8)
        elif encoding == "F16":
            half = values.astype(np.float16)
            data, values = half.view(np.uint8), half.astype(np.float32)
        else:
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            data, values = bits.view(np.uint8), (bits.astype(np.uint32) << 16).view(np.float32)
        return WeightTensor("w", encoding, (n, k), data), values.astype(np.float64)

    num_values, block_bytes = BLOCK_OF[encoding]
    blocks = rng.integers(0, 256, (n, k // num_values, block_bytes), np.uint8)
    for place, size in HALVES[encoding]:
        half = rng.uniform(0.5, 1.5, blocks.shape[:2]) * rng.choice([-1, 1], blocks.shape[:2]) * size * scale
        blocks[..., place : place + 2] = half.astype(np.float16)[..., None].view(np.uint8)
    data = blocks.reshape(n, -1)
    values = gguf.dequantize(data, gguf.GGMLQuantizationType[encoding])
    return WeightTensor("w", encoding, (n, k), data), values.astype(np.float64)


def quantize_input(x: F32) -> F64:
    """What linear layers make of their input with int8 activations: exactly the kernels' arithmetic."""
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(-1, keepdims=True)
    scale = ((largest / np.float32(127)).view(np.uint32) & ~np.uint32(3)).view(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    return (np.rint(groups * inverse).astype(np.float64) * scale).reshape(x.shape)


def step_of(
    num_tokens: int, logit_tokens: list[int] | None = None, *, ids: list[int] | None = None
) -> StepInputs:
    """One row of new tokens from position 0 on, with token ids 0, 1, 2, ... unless given."""
    wanted = list(range(num_tokens)) if logit_tokens is None else logit_tokens
    return StepInputs(
        token_ids=np.arange(num_tokens, dtype=np.int32) if ids is None else np.array(ids, np.int32),
        positions=np.arange(num_tokens, dtype=np.int32),
        rows=np.zeros(1, np.int32),
        query_start=np.array([0, num_tokens], np.int32),
        context_len=np.zeros(1, np.int32),
        logit_tokens=np.array(wanted, np.int32),
        block_tables=(np.ones((1, 1024), np.int32),),
    )


def arena_of(head_dim: int = 16) -> Arena:
    layout = KVLayout.uniform(num_layers=1, num_kv_heads=1, head_dim=head_dim, block_size=8, dtype="float32")
    return Arena(layout, 2)


def attention_of(head_dim: int = 16) -> AttentionShape:
    angles = np.zeros((8192, head_dim // 2), np.float32)
    return AttentionShape(1, (None,), np.cos(angles), np.sin(angles))


def run_ops(
    backend: CpuBackend,
    x: F32,
    program: Callable[[Recorder, Value], Value],
    *,
    logit_tokens: list[int] | None = None,
    head_dim: int = 16,
) -> F32:
    """``program`` applied to the activations ``x``, which arrive through an embedding table of float32."""
    table = backend.load_embedding(float_tensor(x, "x"))
    compiled = backend.compile(
        lambda ops: program(ops, ops.embed(table)),  # type: ignore[arg-type]
        arena=arena_of(head_dim),
        attention=attention_of(head_dim),
        max_tokens=len(x),
    )
    step = step_of(len(x), logit_tokens)
    compiled(step)[:] = np.nan  # the memory that the next call returns
    return compiled(step).copy()
