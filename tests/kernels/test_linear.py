"""Linear layers against float64 in every encoding, and equality wherever circumstances must not matter."""

import resource
from pathlib import Path

import gguf
import numpy as np
import pytest
from kernel_case import (
    BLOCKS,
    ENCODINGS,
    F32,
    F64,
    FMA_ISAS,
    HALVES,
    SUPERBLOCKS,
    float_tensor,
    quantize_input,
    random_tensor,
    run_ops,
)

from octavo.backends.cpu import CpuBackend
from octavo.backends.recorder import Recorder, Value, fuse
from octavo.core.config import Activations
from octavo.weights.tensor import BLOCK_OF, Encoding, WeightTensor

ROWS = (1, 2, 3, 4, 7, 16, 17, 45, 64, 129)
SHAPES = ((1, 32), (15, 64), (16, 576), (17, 64), (192, 576), (40, 1536))
SUPERBLOCK_SHAPES = ((1, 256), (33, 512), (192, 768))
UNEVEN_SHAPES = ((17, 1), (16, 31), (5, 33), (33, 65))
QUANTIZED = BLOCKS + SUPERBLOCKS
CASES: list[tuple[Encoding, Activations]] = [
    (encoding, activations)
    for encoding in ENCODINGS
    for activations in (("int8", "float32") if encoding in QUANTIZED else ("float32",))
]


def shapes_of(encoding: Encoding) -> tuple[tuple[int, int], ...]:
    if encoding in SUPERBLOCKS:
        return SUPERBLOCK_SHAPES
    return SHAPES if encoding in BLOCKS else SHAPES[:4] + UNEVEN_SHAPES


def inputs(rng: np.random.Generator, rows: int, k: int) -> F32:
    """Activations of mixed magnitude, with outliers, and a group of zeros."""
    x = rng.standard_normal((rows, k)) * np.exp(rng.standard_normal((rows, 1)))
    x[:, :: max(1, k // 5)] *= 20
    x[0, :32] = 0
    return x.astype(np.float32)


def apply(
    backend: CpuBackend, x: F32, weights: list[WeightTensor], biases: list[WeightTensor] | None = None
) -> F32:
    layer = backend.load_linear(weights, biases or [])
    return run_ops(backend, x, lambda ops, v: ops.linear(v, layer))


def check(got: F32, x: F64, w: F64, extra: F64 | float = 0.0) -> None:
    """Within float32 rounding of the float64 product, measured by the sum of the terms' magnitudes."""
    expected = x @ w.T + extra
    magnitude = np.abs(x) @ np.abs(w).T + np.abs(extra)
    assert got.shape == expected.shape
    assert np.all(np.abs(got - expected) <= 1e-6 * magnitude)


@pytest.mark.parametrize(("encoding", "activations"), CASES)
def test_matches_float64(isa: str, encoding: Encoding, activations: Activations) -> None:
    rng = np.random.default_rng(1)
    backend = CpuBackend(2, activations, isa=isa)
    for n, k in shapes_of(encoding):
        weight, values = random_tensor(rng, encoding, n, k)
        for rows in ROWS if k < 1536 else (1, 5):
            x = inputs(rng, rows, k)
            seen = quantize_input(x) if activations == "int8" else x.astype(np.float64)
            check(apply(backend, x, [weight]), seen, values)


def test_bfloat16_weights_may_see_a_rounded_input(isa: str) -> None:
    """By default the input is rounded to nearest even where the instruction set multiplies pairs."""
    rng = np.random.default_rng(11)
    backend = CpuBackend(2, isa=isa)
    for n, k in shapes_of("BF16"):
        weight, values = random_tensor(rng, "BF16", n, k)
        for rows in ROWS if k < 1536 else (1, 5):
            x = inputs(rng, rows, k)
            bits = x.view(np.uint32)
            even = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
            got = apply(backend, x, [weight])
            seen = even if isa.endswith("bf16") else x
            check(got, seen.astype(np.float64), values)
            kept = apply(CpuBackend(2, "int8", isa=isa), x, [weight])
            np.testing.assert_array_equal(kept, apply(CpuBackend(2, "float32", isa=isa), x, [weight]))


@pytest.mark.parametrize(("encoding", "activations"), [*CASES, ("BF16", "auto")])
def test_a_row_is_the_same_in_any_company_and_with_any_threads(
    isa: str, encoding: Encoding, activations: Activations
) -> None:
    rng = np.random.default_rng(2)
    weight, _ = random_tensor(rng, encoding, 83, 256)
    x = inputs(rng, max(ROWS), 256)
    backends = [CpuBackend(threads, activations, isa=isa) for threads in (1, 2, 4)]
    whole = apply(backends[0], x, [weight])
    for backend in backends[1:]:
        np.testing.assert_array_equal(apply(backend, x, [weight]), whole)
    for rows in ROWS:
        np.testing.assert_array_equal(apply(backends[1], x[:rows], [weight]), whole[:rows])
    np.testing.assert_array_equal(apply(backends[1], x[100:101], [weight]), whole[100:101])


def test_layers_of_different_widths_one_after_the_other() -> None:
    """Workers that are late at one layer leave alone what others have prepared for the next."""
    rng = np.random.default_rng(5)
    widths = (64, 1536, 64, 32, 1024, 64, 96, 1536, 64)
    pairs = zip(widths[1:], widths, strict=False)
    weights = [random_tensor(rng, "Q8_0", n, k)[0] for n, k in pairs]
    x = inputs(rng, 2, widths[0])

    def chain(threads: int) -> F32:
        backend = CpuBackend(threads)
        layers = [backend.load_linear([w]) for w in weights]

        def program(ops: Recorder, value: Value) -> Value:
            for layer in layers:
                value = ops.linear(value, layer)
            return value

        return run_ops(backend, x, program)

    expected = chain(1)
    for _ in range(40):
        np.testing.assert_array_equal(chain(8), expected)


@pytest.mark.parametrize(("encoding", "activations"), CASES)
def test_instruction_sets_with_fma_agree_to_the_bit(encoding: Encoding, activations: Activations) -> None:
    rng = np.random.default_rng(3)
    weight, _ = random_tensor(rng, encoding, 50, 512)
    x = inputs(rng, 21, 512)
    results = [apply(CpuBackend(2, activations, isa=isa), x, [weight]) for isa in FMA_ISAS]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_segments_lie_side_by_side(isa: str, activations: Activations) -> None:
    """Matrices of different encodings and odd sizes in one layer give what each gives alone."""
    rng = np.random.default_rng(4)
    backend = CpuBackend(2, activations, isa=isa)
    sizes = (48, 17, 1, 16, 33, 5, 20, 31, 2, 16, 47, 3, 18)
    weights = [random_tensor(rng, e, n, 256)[0] for e, n in zip(ENCODINGS, sizes, strict=True)]
    biases = [float_tensor(rng.standard_normal(n).astype(np.float32)) for n in sizes]
    x = inputs(rng, 9, 256)
    together = apply(backend, x, weights, biases)
    alone = [apply(backend, x, [w], [b]) for w, b in zip(weights, biases, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(alone, axis=1))


def test_bias_and_residual(isa: str) -> None:
    rng = np.random.default_rng(5)
    backend = CpuBackend(2, isa=isa)
    weight, values = random_tensor(rng, "Q4_1", 64, 64)
    bias = rng.standard_normal(64).astype(np.float32)
    x = inputs(rng, 70, 64)
    layer = backend.load_linear([weight], [float_tensor(bias)])
    plain = apply(backend, x, [weight], [float_tensor(bias)])
    check(plain, quantize_input(x), values, bias.astype(np.float64) * np.ones((70, 1)))
    got = run_ops(backend, x, lambda ops, v: ops.linear(v, layer, residual=v))
    np.testing.assert_array_equal(got, plain + x)
    # Where the residual is not read again, the result takes its place.
    got = run_ops(backend, x, lambda ops, v: ops.linear(ops.linear(v, layer, residual=v), layer))
    np.testing.assert_array_equal(got, apply(backend, plain + x, [weight], [float_tensor(bias)]))


@pytest.mark.parametrize("rows", [1, 2, 3, 70])
def test_joined_operations_give_the_same_bits(isa: str, rows: int) -> None:
    """A norm or an activation that the linear layer computes itself, and one that stands alone."""
    rng = np.random.default_rng(8)
    vector = CpuBackend(1).load_vector(float_tensor(rng.standard_normal(96).astype(np.float32)))
    square = random_tensor(rng, "Q4_1", 96, 96)[0]
    half = random_tensor(rng, "Q8_0", 96, 32)[0]
    x = inputs(rng, rows, 96)
    for threads in (1, 3):
        backend = CpuBackend(threads, isa=isa)
        first, second = backend.load_linear([square]), backend.load_linear([half])
        gate_up = backend.load_linear([random_tensor(rng, "F32", 64, 96)[0]])
        other = backend.load_linear([float_tensor(np.zeros((96, 96), np.float32))])
        other_half = backend.load_linear([float_tensor(np.zeros((96, 32), np.float32))])

        def program(ops, v, joined, layers=(first, second, gate_up, other, other_half)):
            first, second, gate_up, other, rest = layers
            normed = ops.rms_norm(v, vector, 1e-5)
            a = ops.linear(normed, first, residual=v)
            if not joined:
                a = ops.linear(normed, other, residual=a)
            active = ops.silu_mul(ops.linear(a, gate_up))
            b = ops.linear(active, second, residual=a)
            return b if joined else ops.linear(active, rest, residual=b)

        lengths = []
        for joined in (True, False):
            recorder = Recorder(q_width=16)
            program(recorder, Value(96), joined)
            lengths.append(len(recorder.records) - len(fuse(recorder.records)))
        assert lengths == [2, 0]
        np.testing.assert_array_equal(
            run_ops(backend, x, lambda ops, v, p=program: p(ops, v, True)),
            run_ops(backend, x, lambda ops, v, p=program: p(ops, v, False)),
        )


def test_a_bad_row_stays_alone(isa: str) -> None:
    """NaN, infinities and values beyond the kernels' range spoil their own row, and no other."""
    rng = np.random.default_rng(6)
    weights = [random_tensor(rng, encoding, 20, 256)[0] for encoding in ENCODINGS]
    x = inputs(rng, 12, 256)
    bad = x.copy()
    bad[2, 40], bad[5, 0], bad[5, 1], bad[7, 3] = np.nan, np.inf, -np.inf, np.float32(1e36)
    good = [r for r in range(12) if r not in (2, 5, 7)]
    for activations in ("int8", "float32"):
        backend = CpuBackend(2, activations, isa=isa)
        expected, got = apply(backend, x, weights), apply(backend, bad, weights)
        np.testing.assert_array_equal(got[good], expected[good])
        assert not np.isfinite(got[[2, 5]]).any()
        if activations == "int8":
            assert np.isnan(got[7, 60:]).all()


def test_extreme_weights_and_inputs_stay_exact(isa: str) -> None:
    """The largest integer sums that can occur neither saturate nor overflow."""
    k = 64
    backend = CpuBackend(1, isa=isa)
    x = np.where(np.arange(k) % 2, -1, 1) * np.full((2, k), 127, np.float32)
    for q in (-128, 127):
        weight_q = np.where(np.arange(k) % 2, -q - 1, q).astype(np.int8)  # all products of one sign
        blocks = np.zeros((1, 2, 34), np.uint8)
        blocks[..., :2] = np.array([1], np.float16).view(np.uint8)
        blocks[..., 2:] = weight_q.reshape(2, 32).view(np.uint8)
        got = apply(backend, x, [WeightTensor("w", "Q8_0", (1, k), blocks.reshape(1, -1))])
        np.testing.assert_array_equal(got, x.astype(np.float64) @ weight_q[:, None])
    for nibble in (0, 15):
        blocks = np.full((1, 2, 18), nibble * 17, np.uint8)
        blocks[..., :2] = np.array([1], np.float16).view(np.uint8)
        got = apply(backend, np.abs(x), [WeightTensor("w", "Q4_0", (1, k), blocks.reshape(1, -1))])
        np.testing.assert_array_equal(got, np.full((2, 1), k * 127 * (nibble - 8)))


def test_float_scales_of_every_kind(isa: str) -> None:
    """Float16 scales: subnormal, largest, negative, zero; a one-hot input reads the weights back exactly."""
    d = np.array([6e-8, 65504, -1.5, 0, 2**-14, 1e-5, 0.1, -65504], np.float16)
    blocks = np.zeros((8, 1, 34), np.uint8)
    blocks[:, 0, :2] = d[:, None].view(np.uint8)
    q = np.arange(-128, 128, dtype=np.int16).reshape(8, 32).astype(np.int8)
    blocks[:, 0, 2:] = q.view(np.uint8)
    weight = WeightTensor("w", "Q8_0", (8, 32), blocks.reshape(8, -1))
    expected = (q * d.astype(np.float64)[:, None]).T
    for activations in ("int8", "float32"):
        backend = CpuBackend(1, activations, isa=isa)
        got = apply(backend, np.eye(32, dtype=np.float32) * 127, [weight])
        np.testing.assert_array_equal(got, (expected * 127).astype(np.float32))


@pytest.mark.parametrize("encoding", QUANTIZED)
def test_one_hot_inputs_read_the_weights_back_exactly(isa: str, encoding: Encoding) -> None:
    """Of any bytes with finite scales: not only close to what the gguf library computes, but equal."""
    rng = np.random.default_rng(9)
    num_values, block_bytes = BLOCK_OF[encoding]
    blocks = rng.integers(0, 256, (40, 512 // num_values, block_bytes), np.uint8)
    for place, _ in HALVES[encoding]:
        blocks[..., place + 1] &= 0xBF  # no exponent of infinity
    data = blocks.reshape(40, -1)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[encoding])
    weight = WeightTensor("w", encoding, (40, 512), data)
    got = apply(CpuBackend(2, "float32", isa=isa), np.eye(512, dtype=np.float32), [weight])
    np.testing.assert_array_equal(got, expected.T)


def test_packed_weights_go_back_to_the_system(isa: str) -> None:
    """All but the latest mapping: a model that is loaded again and again takes the room of one."""
    weight = float_tensor(np.ones((1024, 1024), np.float32))  # 4 MiB, of a mapping of 64

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def load(times: int) -> None:
        for _ in range(times):
            backend = CpuBackend(1, isa=isa)
            layers = [backend.load_linear([weight]) for _ in range(20)]
            assert {layer.packed.num_outputs for layer in layers} == {1024}

    load(1)
    before = resident()
    load(4)
    assert resident() - before < 40 << 20


def test_shapes_that_do_not_fit_are_refused() -> None:
    rng = np.random.default_rng(7)
    backend = CpuBackend(1)
    good, _ = random_tensor(rng, "Q4_0", 4, 64)
    with pytest.raises(ValueError, match="same number of inputs, got 64 and 32"):
        backend.load_linear([good, random_tensor(rng, "F32", 4, 32)[0]])
    with pytest.raises(ValueError, match="multiple of 32 values, not of 65"):
        backend.load_linear([WeightTensor("w", "Q4_0", (4, 65), good.data)])
    with pytest.raises(ValueError, match="takes 36 bytes, the data has 30"):
        backend.load_linear([WeightTensor("w", "Q4_0", (4, 64), good.data[:, :30].copy())])
    with pytest.raises(ValueError, match="one value per output"):
        backend.load_linear([good], [float_tensor(np.zeros(3, np.float32))])
    with pytest.raises(ValueError, match="2 biases for 1 weights"):
        backend.load_linear([good], [float_tensor(np.zeros(4, np.float32))] * 2)
    with pytest.raises(ValueError, match="at least one"):
        backend.load_linear([])
    layer = backend.load_linear([good])
    with pytest.raises(ValueError, match="linear input is 32 wide, must be 64"):
        run_ops(backend, np.zeros((1, 32), np.float32), lambda ops, v: ops.linear(v, layer))
