"""Embedding, norms, the gated activation and row selection against float64."""

import numpy as np
import pytest
from kernel_case import (
    ENCODINGS,
    FMA_ISAS,
    arena_of,
    attention_of,
    float_tensor,
    random_tensor,
    run_ops,
    step_of,
)

from octavo.backends.cpu import CpuBackend
from octavo.backends.oracle import largest
from octavo.weights.encoding import dequantize
from octavo.weights.tensor import Encoding

WIDTHS = (1, 15, 16, 17, 64, 100, 576)
EPS = 1e-5


def norm(x, weight, eps=EPS):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_embedding_reads_exactly_what_the_bytes_mean(isa: str, encoding: Encoding) -> None:
    rng = np.random.default_rng(1)
    table, values = random_tensor(rng, encoding, 50, 512)
    backend = CpuBackend(2, isa=isa)
    handle = backend.load_embedding(table)
    program = backend.compile(
        lambda ops: ops.embed(handle), arena=arena_of(), attention=attention_of(), max_tokens=60
    )
    ids = rng.integers(0, 50, 60).tolist()
    got = program(step_of(60, ids=ids))
    np.testing.assert_array_equal(got, dequantize(table)[ids])
    np.testing.assert_allclose(got, values[ids], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(isa: str, width: int) -> None:
    rng = np.random.default_rng(2)
    backend = CpuBackend(2, isa=isa)
    x = (rng.standard_normal((33, width)) * np.exp(3 * rng.standard_normal((33, 1)))).astype(np.float32)
    x[5] = 0
    weight = rng.standard_normal(width).astype(np.float32)
    handle = backend.load_vector(float_tensor(weight))
    got = run_ops(backend, x, lambda ops, v: ops.rms_norm(v, handle, EPS))
    np.testing.assert_allclose(got, norm(x, weight), rtol=2e-6)
    alone = run_ops(CpuBackend(4, isa=isa), x[20:21], lambda ops, v: ops.rms_norm(v, handle, EPS))
    np.testing.assert_array_equal(got[20:21], alone)


@pytest.mark.parametrize("read_again", [False, True], ids=["in place", "input read again"])
def test_head_norm_changes_only_its_heads(isa: str, read_again: bool) -> None:
    rng = np.random.default_rng(3)
    backend = CpuBackend(2, isa=isa)
    head_dim, heads = 24, 5
    x = rng.standard_normal((7, heads * head_dim)).astype(np.float32)
    weight = rng.standard_normal(head_dim).astype(np.float32)
    handle = backend.load_vector(float_tensor(weight))
    ones = backend.load_vector(float_tensor(np.ones(heads * head_dim, np.float32)))

    def program(ops, v):
        kept = ops.rms_norm(v, ones, EPS)
        got = ops.head_norm(kept, 1, 3, handle, 1e-6)
        zero = ops.linear(kept, nothing, residual=got) if read_again else got
        return ops.rms_norm(zero, ones, EPS)

    nothing = backend.load_linear([float_tensor(np.zeros((heads * head_dim, heads * head_dim), np.float32))])
    expected = norm(x, 1).reshape(7, heads, head_dim)
    expected[:, 1:4] = norm(expected[:, 1:4], weight, 1e-6)
    got = run_ops(backend, x, program, head_dim=head_dim)
    np.testing.assert_allclose(got, norm(expected.reshape(7, -1), 1), rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(isa: str, width: int) -> None:
    rng = np.random.default_rng(4)
    backend = CpuBackend(2, isa=isa)
    x = (rng.standard_normal((9, 2 * width)) * 10).astype(np.float32)
    gate, up = x[:, :width].astype(np.float64), x[:, width:]
    got = run_ops(backend, x, lambda ops, v: ops.silu_mul(v))
    np.testing.assert_allclose(got, gate / (1 + np.exp(-gate)) * up, rtol=2e-6)


def test_silu_at_the_ends_of_the_range(isa: str) -> None:
    gate = np.array(
        [0, -0.0, 1e-30, -1e-30, 87, 88.5, 200, 3e38, -87, -88.5, -104, -3e38, np.nan, np.inf], np.float32
    )
    x = np.concatenate([gate, np.ones_like(gate)])[None]
    got = run_ops(CpuBackend(1, isa=isa), x, lambda ops, v: ops.silu_mul(v))[0]
    with np.errstate(over="ignore", invalid="ignore"):
        wide = gate.astype(np.float64)
        expected = wide / (1 + np.exp(-wide))
    np.testing.assert_allclose(got[:8], expected[:8], rtol=1e-6)
    # exp(88.3) stands for anything larger: negative zero comes out as a negative of less than 1.2 at most.
    np.testing.assert_allclose(got[8:11], expected[8:11], rtol=1e-6, atol=1e-36)
    assert -2 < got[11] <= 0
    assert np.isnan(got[12])
    assert got[13] == np.inf


def test_select_keeps_wanted_rows(isa: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, 33)).astype(np.float32)
    wanted = [0, 3, 17, 39]
    backend = CpuBackend(2, isa=isa)
    np.testing.assert_array_equal(
        run_ops(backend, x, lambda ops, v: ops.select(v), logit_tokens=wanted), x[wanted]
    )
    weight = backend.load_vector(float_tensor(np.ones(33, np.float32)))
    got = run_ops(backend, x, lambda ops, v: ops.rms_norm(ops.select(v), weight, EPS), logit_tokens=wanted)
    np.testing.assert_array_equal(
        got, run_ops(backend, x, lambda ops, v: ops.rms_norm(v, weight, EPS))[wanted]
    )
    assert run_ops(backend, x, lambda ops, v: ops.select(v), logit_tokens=[]).shape == (0, 33)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 4095, 4096, 4097, 20_000])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_largest_of_each_wanted_row(width: int, threads: int) -> None:
    rng = np.random.default_rng(width)
    x = rng.integers(-50, 50, (40, width)).astype(np.float32)  # with many equals
    x[1] = -np.float32(3)
    x[2] = [0.0, *[-0.0] * (width - 1)]
    x[3, -1] = 1000
    for row, bad in enumerate((np.nan, np.inf, -np.inf), 4):
        x[row, rng.integers(width)] = bad
    wanted = sorted({0, 1, 2, 3, 4, 5, 6, 20, 39})
    backend = CpuBackend(threads)
    table = backend.load_embedding(float_tensor(x))
    program = backend.compile(
        lambda ops: ops.select(ops.embed(table)), arena=arena_of(), attention=attention_of(), max_tokens=40
    )
    for rows in (wanted, wanted[:1], wanted[::2], []):
        np.testing.assert_array_equal(program(step_of(40, rows)), x[rows])
        assert program.largest == largest(x[rows])
    assert largest(x[[1, 2, 3, 4, 5, 6]]) == [0, 0, width - 1, -1, -1, -1]


def test_instruction_sets_with_fma_agree_to_the_bit() -> None:
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((12, 200)) * 5).astype(np.float32)
    weight = rng.standard_normal(200).astype(np.float32)
    results = []
    for isa in FMA_ISAS:
        backend = CpuBackend(2, isa=isa)
        handle = backend.load_vector(float_tensor(weight))
        results.append(run_ops(backend, x, lambda ops, v, h=handle: ops.silu_mul(ops.rms_norm(v, h, EPS))))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
