"""Paged attention: decoding from a cache larger than the processor's, and prefill of long prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.attention.oracle import attend
from octavo.attention.plan import StepInputs
from octavo.backends.base import AttentionShape
from octavo.backends.cpu import CpuBackend, Program
from octavo.backends.recorder import Recorder, Value
from octavo.bench.parts.kernel_case import F32, Case, ModelSize, Rotation, compile_ops, relative_error
from octavo.bench.parts.op_counts import KV_ARITHMETIC, token_kv_bytes
from octavo.engine.machine import available_memory
from octavo.storage.arena import Arena
from octavo.storage.codec import read_kv
from octavo.storage.layout import KVLayout, StorageDtype

DECODE = ((1, 2048), (1, 16384), (16, 2048))  # rows, tokens of context of each
PREFILL = ((512, 0), (512, 4096), (2048, 0), (2048, 4096))  # new tokens, tokens before them
DTYPES: tuple[StorageDtype, ...] = ("bfloat16", "float16", "float32", "int8")
BLOCK_SIZES = (16, 64)

_NUM_LAYERS = 8  # of the cache in which sequences decode
_CHECKED_TOKENS = 5
# Of bfloat16 and int8, kernels may round queries and weights too.
_TOLERANCE = {"bfloat16": 0.02, "float16": 1e-5, "float32": 1e-5, "int8": 0.05}


def decode_cases(
    backend: CpuBackend,
    models: Sequence[ModelSize],
    *,
    sizes: Sequence[tuple[int, int]] = DECODE,
    dtypes: Sequence[StorageDtype] = DTYPES,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    working_set: int,
) -> Iterator[Case]:
    """One new token per row; successive runs take other rows, until ``working_set`` bytes have been read."""
    for model in models:
        for dtype in dtypes:
            for block_size in block_sizes:
                for num_rows, context_len in sizes:
                    cache_bytes = _NUM_LAYERS * context_len * _token_bytes(model, dtype)
                    num_turns = max(1, -(-working_set // (cache_bytes * num_rows)))
                    if 2 * num_turns * num_rows * cache_bytes > available_memory():
                        continue
                    shape = (num_turns * num_rows, context_len)
                    cache = _Cache.make(model, _layout(model, dtype, block_size, _NUM_LAYERS), shape)
                    yield _decode_case(backend, cache, num_rows, context_len, num_turns)


def prefill_cases(
    backend: CpuBackend,
    models: Sequence[ModelSize],
    *,
    sizes: Sequence[tuple[int, int]] = PREFILL,
    dtypes: Sequence[StorageDtype] = DTYPES,
    block_sizes: Sequence[int] = BLOCK_SIZES,
) -> Iterator[Case]:
    """Many new tokens of one row over those before them."""
    for model in models:
        for dtype in dtypes:
            for block_size in block_sizes:
                for num_new, num_past in sizes:
                    cache = _Cache.make(model, _layout(model, dtype, block_size, 1), (1, num_past + num_new))
                    yield _prefill_case(backend, cache, num_new, num_past)


@dataclass(frozen=True, slots=True)
class _Cache:
    """A cache full of random K and V, its blocks in random order."""

    model: ModelSize
    arena: Arena
    table: np.ndarray
    rng: np.random.Generator

    @staticmethod
    def make(model: ModelSize, layout: KVLayout, shape: tuple[int, int]) -> "_Cache":
        """``shape``: rows, and tokens of each."""
        rng = np.random.default_rng(0)
        num_rows, num_tokens = shape
        num_blocks = -(-num_tokens // _block_size(layout))
        arena = Arena(layout, 1 + num_rows * num_blocks)
        _fill(arena, rng)
        table = 1 + rng.permutation(num_rows * num_blocks).astype(np.int32).reshape(num_rows, num_blocks)
        return _Cache(model, arena, table, rng)

    @property
    def attention(self) -> AttentionShape:
        positions = self.table.shape[1] * self.arena.layout.layers[0].block_size
        angles = np.zeros((positions, self.model.head_dim // 2), np.float32)
        windows = (None,) * len(self.arena.layout.layers)
        return AttentionShape(self.model.num_heads, windows, np.cos(angles), np.sin(angles))

    def queries(self, num_tokens: int) -> F32:
        return self.rng.standard_normal((num_tokens, self.model.num_heads * self.model.head_dim), np.float32)

    def program(self, backend: CpuBackend, q: F32, layers: Sequence[int]) -> Program:
        def body(ops: Recorder, value: Value) -> Value:
            return [ops.paged_attention(value, layer) for layer in layers][-1]

        return compile_ops(backend, q, body, arena=self.arena, attention=self.attention)

    def error(self, backend: CpuBackend, q: F32, step: StepInputs) -> float:
        """Of the first layer, at some tokens of the step, the first and the last among them."""
        got = self.program(backend, q, [0])(step)
        errors = []
        for token in np.unique(np.linspace(0, step.num_tokens - 1, _CHECKED_TOKENS, dtype=int)):
            row = int(step.rows[np.searchsorted(step.query_start, token, side="right") - 1])
            k, v = read_kv(self.arena, 0, step.block_tables, row, int(step.positions[token]) + 1)
            one = q[token].reshape(1, self.model.num_heads, self.model.head_dim)
            errors.append(relative_error(got[token], attend(one, k, v).reshape(-1)))
        return max(errors)


def _decode_case(backend: CpuBackend, cache: _Cache, num_rows: int, context_len: int, num_turns: int) -> Case:
    model, layout = cache.model, cache.arena.layout
    q = cache.queries(num_rows)
    program = cache.program(backend, q, range(len(layout.layers)))
    steps = [
        StepInputs.build(
            [(turn * num_rows + i, context_len - 1, [i], False) for i in range(num_rows)], (cache.table,)
        )
        for turn in range(num_turns)
    ]
    streamed = num_rows * context_len * _token_bytes(model, layout.dtype)
    return Case(
        kernel="paged_attention",
        name=f"{model.name} decode {layout.dtype}, {num_rows} x {context_len:,}, block {_block_size(layout)}",
        parameters={"phase": "decode", "rows": num_rows, "context_len": context_len} | _parameters(cache),
        check=lambda: cache.error(backend, q, steps[0]),
        tolerance=_TOLERANCE[layout.dtype],
        run=Rotation([(program, step) for step in steps]).run,
        working_set=num_turns * len(layout.layers) * streamed,
        streamed_bytes=streamed,
        activation_bytes=2 * q.nbytes,
        operations=4 * q.shape[1] * num_rows * context_len,
        arithmetic=KV_ARITHMETIC[layout.dtype],
    )


def _prefill_case(backend: CpuBackend, cache: _Cache, num_new: int, num_past: int) -> Case:
    model, layout = cache.model, cache.arena.layout
    q = cache.queries(num_new)
    program = cache.program(backend, q, [0])
    step = StepInputs.build([(0, num_past, list(range(num_new)), False)], (cache.table,))
    streamed = (num_past + num_new) * _token_bytes(model, layout.dtype)
    return Case(
        kernel="paged_attention",
        name=f"{model.name} prefill {layout.dtype}, {num_new:,} on {num_past:,}, block {_block_size(layout)}",
        parameters={"phase": "prefill", "new": num_new, "past": num_past} | _parameters(cache),
        check=lambda: cache.error(backend, q, step),
        tolerance=_TOLERANCE[layout.dtype],
        run=Rotation([(program, step)]).run,
        working_set=streamed,
        streamed_bytes=streamed,
        activation_bytes=2 * q.nbytes,
        operations=4 * q.shape[1] * int((step.positions.astype(np.int64) + 1).sum()),
        arithmetic=KV_ARITHMETIC[layout.dtype],
    )


def _parameters(cache: _Cache) -> dict[str, str | int]:
    layout = cache.arena.layout
    return {"model": cache.model.name, "dtype": layout.dtype, "block_size": _block_size(layout)}


def _layout(model: ModelSize, dtype: StorageDtype, block_size: int, num_layers: int) -> KVLayout:
    return KVLayout.uniform(
        num_layers=num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=block_size,
        dtype=dtype,
    )


def _fill(arena: Arena, rng: np.random.Generator) -> None:
    """Random K and V of about 1, everywhere."""
    layout = arena.layout
    values = rng.standard_normal(1 << 20, np.float32)
    if layout.dtype == "float32":
        pattern = values.view(np.uint8)
    elif layout.dtype == "bfloat16":
        pattern = np.ascontiguousarray(values.view(np.uint16)[1::2]).view(np.uint8)
    elif layout.dtype == "float16":
        pattern = values.astype(np.float16).view(np.uint8)
    else:  # K is stored with 128 added, V is not: neither may be -128
        pattern = rng.integers(1, 128, 1 << 20, np.uint8) + np.uint8(128) * rng.integers(
            0, 2, 1 << 20, np.uint8
        )
    everything = arena.data.reshape(-1)
    for start in range(0, len(everything), len(pattern)):
        part = everything[start : start + len(pattern)]
        part[:] = pattern[: len(part)]
    if layout.dtype == "int8":
        size = _block_size(layout)
        scales = np.full(size, 1 / 74, np.float32).view(np.uint8)  # uniform bytes spread by 74
        for tile in (t for layer in layout.layers for t in (*layer.k_tiles, *layer.v_tiles)):
            begin = tile.offset + size * layout.head_dim
            arena.data[:, begin : begin + len(scales)] = scales


def _token_bytes(model: ModelSize, dtype: StorageDtype) -> int:
    return token_kv_bytes(dtype, model.num_kv_heads, model.head_dim)


def _block_size(layout: KVLayout) -> int:
    return layout.layers[0].block_size
