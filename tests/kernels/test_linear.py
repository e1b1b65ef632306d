"""Linear layers: every encoding against float64, and equality where the result must not depend on circumstances."""

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.weights.tensor import Encoding, WeightTensor

from kernel_case import ENCODINGS, F32, F64, FMA_ISAS, float_tensor, quantize_input, random_tensor, run_ops

ROWS = (1, 2, 3, 4, 7, 16, 17, 64, 129)
SHAPES = [(1, 32), (15, 64), (16, 576), (17, 64), (192, 576), (40, 1536)]
FLOAT_SHAPES = [(17, 1), (16, 31), (5, 33), (33, 65)]
QUANTIZED: tuple[Encoding, ...] = ("Q8_0", "Q4_0", "Q4_1")


def inputs(rng: np.random.Generator, rows: int, k: int) -> F32:
    """Activations of mixed magnitude, with outliers and a group of zeros."""
    x = rng.standard_normal((rows, k)) * np.exp(rng.standard_normal((rows, 1)))
    x[:, :: max(1, k // 5)] *= 20
    x[0, :32] = 0
    return x.astype(np.float32)


def apply(
    backend: CpuBackend,
    x: F32,
    weights: list[WeightTensor],
    biases: list[WeightTensor] = [],  # noqa: B006
    residual: bool = False,
) -> F32:
    layer = backend.load_linear(weights, biases)
    return run_ops(backend, x, lambda ops, v: ops.linear(v, layer, v if residual else None))


def check(got: F32, x: F64, w: F64, bias: F64 | float = 0.0) -> None:
    """Within float32 rounding of the float64 product: relative to the sum of the terms' magnitudes."""
    expected = x @ w.T + bias
    magnitude = np.abs(x) @ np.abs(w).T + np.abs(bias)
    assert got.shape == expected.shape
    assert np.all(np.abs(got - expected) <= 1e-6 * magnitude + 1e-30), np.max(
        np.abs(got - expected) / magnitude
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_matches_float64(isa: str, encoding: Encoding, activations: str) -> None:
    rng = np.random.default_rng(1)
    backend = CpuBackend(2, activations, isa=isa)  # type: ignore[arg-type]
    quantized = encoding in QUANTIZED
    for n, k in SHAPES if quantized else SHAPES[:4] + FLOAT_SHAPES:
        weight, values = random_tensor(rng, encoding, n, k)
        for rows in ROWS if k < 1536 else (1, 5):
            x = inputs(rng, rows, k)
            seen = quantize_input(x) if quantized and activations == "int8" else x.astype(np.float64)
            check(apply(backend, x, [weight]), seen, values)
