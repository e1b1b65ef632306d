"""The small operations between linear layers and attention: on activations that lie in the caches.

``rope_and_write`` is measured for tokens of one prompt, and for a batch in decode, whose rows each write to a
block somewhere in memory.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from octavo.attention.oracle import rotate
from octavo.attention.plan import StepInputs
from octavo.backends.base import AttentionShape
from octavo.backends.cpu import CpuBackend
from octavo.backends.recorder import Recorder, Value
from octavo.bench.parts.kernel_case import (
    F32,
    F64,
    Case,
    ModelSize,
    Rotation,
    compile_ops,
    plain_step,
    relative_error,
)
from octavo.bench.parts.random_weights import float_tensor, random_weight
from octavo.storage.arena import Arena
from octavo.storage.codec import read_kv
from octavo.storage.layout import KVLayout
from octavo.weights.encoding import dequantize

TOKENS = (1, 16, 256)
ROWS = 64

_NUM_OPS = 64  # per run
_BLOCK_SIZE = 16
_ROWS_LAYERS = 16
_COLD_BYTES = 64 << 20  # of lines written before the first is written again: more than a last cache holds
_LINE_BYTES = 64
_EPS = 1e-5
_TOLERANCE, _BFLOAT16_TOLERANCE = 1e-5, 4e-3


def elementwise_cases(
    backend: CpuBackend, models: Sequence[ModelSize], *, tokens: Sequence[int] = TOKENS
) -> Iterator[Case]:
    """embed, rms_norm, rope_and_write and silu_mul of each model."""
    rng = np.random.default_rng(0)
    for model in models:
        for num_tokens in tokens:
            yield _embed(backend, model, num_tokens, rng)
            yield _rms_norm(backend, model, num_tokens, rng)
            yield _rope_and_write(backend, model, num_tokens, rng)
            yield _silu_mul(backend, model, num_tokens, rng)
        if max(tokens) >= ROWS:
            yield _rope_and_write_rows(backend, model, rng)


def _embed(backend: CpuBackend, model: ModelSize, num_tokens: int, rng: np.random.Generator) -> Case:
    tensor = random_weight(rng, "Q4_1", model.vocab_size, model.hidden)
    table = backend.load_embedding(tensor)
    x = np.zeros((num_tokens, 1), np.float32)
    expected = dequantize(tensor)[:num_tokens].astype(np.float64)
    return _case(
        backend,
        "embed",
        model,
        x,
        lambda ops, _: ops.embed(table),
        expected=expected,
        streamed_bytes=num_tokens * tensor.num_bytes // model.vocab_size,
        activation_bytes=expected.size * 4,
    )


def _rms_norm(backend: CpuBackend, model: ModelSize, num_tokens: int, rng: np.random.Generator) -> Case:
    x = rng.standard_normal((num_tokens, model.hidden), np.float32)
    scale = rng.standard_normal(model.hidden, np.float32)
    weight = backend.load_vector(float_tensor(scale))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + _EPS) * scale
    return _case(
        backend,
        "rms_norm",
        model,
        x,
        lambda ops, v: ops.rms_norm(v, weight, _EPS),
        expected=expected,
        activation_bytes=2 * x.nbytes,
    )


def _silu_mul(backend: CpuBackend, model: ModelSize, num_tokens: int, rng: np.random.Generator) -> Case:
    x = rng.standard_normal((num_tokens, 2 * model.inner), np.float32)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    return _case(
        backend,
        "silu_mul",
        model,
        x,
        lambda ops, v: ops.silu_mul(v),
        expected=gate / (1 + np.exp(-gate)) * up,
        activation_bytes=x.nbytes * 3 // 2,
    )


def _rope_and_write(backend: CpuBackend, model: ModelSize, num_tokens: int, rng: np.random.Generator) -> Case:
    num_blocks = -(-num_tokens // _BLOCK_SIZE)
    arena = Arena(_layout(model, num_layers=1), 1 + num_blocks)
    tables = (np.arange(1, 1 + num_blocks, dtype=np.int32)[None],)
    step = StepInputs.build([(0, 0, list(range(num_tokens)), False)], tables)
    x, attention, expected = _rotated(model, step.positions, rng)
    program = compile_ops(
        backend, x, lambda ops, v: ops.rope_and_write(v, 0), arena=arena, attention=attention
    )

    def check() -> float:
        q = program(step).reshape(num_tokens, model.num_heads, model.head_dim)
        k, v = read_kv(arena, 0, tables, 0, num_tokens)
        return relative_error(np.concatenate([q, k, v], axis=1), expected)

    repeated = compile_ops(
        backend, x, _repeat(lambda ops, v: ops.rope_and_write(v, 0)), arena=arena, attention=attention
    )
    return Case(
        kernel="rope_and_write",
        name=_name("rope_and_write", model, num_tokens),
        parameters={"model": model.name, "tokens": num_tokens},
        check=check,
        tolerance=_BFLOAT16_TOLERANCE,
        run=Rotation([(repeated, step)]).run,
        working_set=2 * x.nbytes,
        activation_bytes=_rotated_bytes(model, num_tokens) + num_tokens * _written_bytes(model),
    )


def _rope_and_write_rows(backend: CpuBackend, model: ModelSize, rng: np.random.Generator) -> Case:
    """One token for each of ``ROWS`` rows, layer after layer, to lines that no cache holds any more."""
    # K of 8 tokens is interleaved by 8 bytes, V by 4: a token touches so many lines of each head.
    lines = model.num_kv_heads * (model.head_dim * 2 // 8 + model.head_dim * 4 // _LINE_BYTES)
    num_turns = -(-_COLD_BYTES // (_ROWS_LAYERS * ROWS * lines * _LINE_BYTES))
    arena = Arena(_layout(model, num_layers=_ROWS_LAYERS), 1 + num_turns * ROWS)
    blocks = 1 + rng.permutation(num_turns * ROWS).astype(np.int32).reshape(num_turns, ROWS, 1)
    context_lens = rng.integers(0, _BLOCK_SIZE, ROWS).tolist()
    work = [(row, context_len, [row], 0) for row, context_len in enumerate(context_lens)]
    steps = [StepInputs.build(work, (table,)) for table in blocks]
    x, attention, expected = _rotated(model, steps[0].positions, rng, num_layers=_ROWS_LAYERS)

    def all_layers(ops: Recorder, value: Value) -> Value:
        return [ops.rope_and_write(value, layer) for layer in range(_ROWS_LAYERS)][-1]

    program = compile_ops(backend, x, all_layers, arena=arena, attention=attention)
    rotation = Rotation([(program, step) for step in steps])
    rotation.warm_up()

    def check() -> float:
        q = program(steps[0]).reshape(ROWS, model.num_heads, model.head_dim)
        kv = [
            np.concatenate([part[-1] for part in read_kv(arena, _ROWS_LAYERS - 1, (blocks[0],), row, n + 1)])
            for row, n in enumerate(context_lens)
        ]
        return relative_error(np.concatenate([q, np.stack(kv)], axis=1), expected)

    return Case(
        kernel="rope_and_write",
        name=f"{model.name} rope_and_write, {ROWS} rows",
        parameters={"model": model.name, "tokens": ROWS, "rows": ROWS},
        check=check,
        tolerance=_BFLOAT16_TOLERANCE,
        run=rotation.run,
        working_set=_COLD_BYTES,
        streamed_bytes=ROWS * _written_bytes(model),
        activation_bytes=_rotated_bytes(model, ROWS),
    )


def _layout(model: ModelSize, *, num_layers: int) -> KVLayout:
    return KVLayout.uniform(
        num_layers=num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=_BLOCK_SIZE,
        dtype="bfloat16",
    )


def _rotated(
    model: ModelSize, positions: npt.NDArray[np.int32], rng: np.random.Generator, *, num_layers: int = 1
) -> tuple[F32, AttentionShape, F64]:
    """Random q, k and v of each token, random angles of all positions, and what becomes of q, k and v."""
    heads, kv_heads, dim = model.num_heads, model.num_kv_heads, model.head_dim
    angles = rng.uniform(-3, 3, (int(positions.max()) + 1, dim // 2)).astype(np.float32)
    attention = AttentionShape(heads, (None,) * num_layers, np.cos(angles), np.sin(angles))
    x = rng.standard_normal((len(positions), (heads + 2 * kv_heads) * dim), np.float32)
    parts = x.reshape(len(positions), -1, dim).astype(np.float64)
    turned = rotate(parts[:, : heads + kv_heads], attention.cos[positions], attention.sin[positions])
    return x, attention, np.concatenate([turned, parts[:, heads + kv_heads :]], axis=1)


def _rotated_bytes(model: ModelSize, num_tokens: int) -> int:
    """Activations: q, k and v read, q written."""
    return num_tokens * (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim * 4


def _written_bytes(model: ModelSize) -> int:
    """K and V of one token in bfloat16."""
    return 2 * model.num_kv_heads * model.head_dim * 2


def _case(
    backend: CpuBackend,
    kernel: str,
    model: ModelSize,
    x: F32,
    body: Callable[[Recorder, Value], Value],
    *,
    expected: F64,
    activation_bytes: int,
    streamed_bytes: int = 0,
) -> Case:
    step = plain_step(len(x))
    rotation = Rotation([(compile_ops(backend, x, _repeat(body)), step)])
    rotation.warm_up()
    return Case(
        kernel=kernel,
        name=_name(kernel, model, len(x)),
        parameters={"model": model.name, "tokens": len(x)},
        check=lambda: relative_error(compile_ops(backend, x, body)(step), expected),
        tolerance=_TOLERANCE,
        run=rotation.run,
        working_set=activation_bytes,
        streamed_bytes=streamed_bytes,
        activation_bytes=activation_bytes,
    )


def _repeat(body: Callable[[Recorder, Value], Value]) -> Callable[[Recorder, Value], Value]:
    return lambda ops, value: [body(ops, value) for _ in range(_NUM_OPS)][-1]


def _name(kernel: str, model: ModelSize, num_tokens: int) -> str:
    return f"{model.name} {kernel}, {num_tokens} {'token' if num_tokens == 1 else 'tokens'}"
