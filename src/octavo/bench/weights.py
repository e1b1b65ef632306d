"""Random weights in every encoding, for kernels whose speed does not depend on the values."""

import numpy as np

from octavo.weights.tensor import BLOCK_OF, Encoding, WeightTensor

_MAX_ROWS = 4096  # that differ; a larger matrix repeats them


def random_weight(
    rng: np.random.Generator, encoding: Encoding, num_outputs: int, num_inputs: int
) -> WeightTensor:
    """A matrix [N, K] with entries of about 1 / sqrt(K), so that outputs are of the size of the inputs."""
    rows = min(num_outputs, _MAX_ROWS)
    spread = 1 / np.sqrt(num_inputs)
    if encoding in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, num_inputs), np.float32) * np.float32(spread)
        data = values.view(np.uint8)
        if encoding == "F16":
            data = values.astype(np.float16).view(np.uint8)
        elif encoding == "BF16":
            data = np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(
                np.uint8
            )  # little-endian: high half
    else:
        num_values, block_bytes = BLOCK_OF[encoding]
        blocks = rng.integers(0, 256, (rows, num_inputs // num_values, block_bytes), np.uint8)
        # Uniform codes: 8-bit ones spread by 74, 4-bit ones by 4.6.
        scale = rng.uniform(0.8, 1.2, blocks.shape[:2]) * spread / (74 if encoding == "Q8_0" else 4.6)
        blocks[..., :2] = scale.astype(np.float16)[..., None].view(np.uint8)
        if encoding == "Q4_1":
            blocks[..., 2:4] = (scale * -7.5).astype(np.float16)[..., None].view(np.uint8)
        data = blocks.reshape(rows, -1)
    if rows < num_outputs:
        data = np.resize(data, (num_outputs, data.shape[1]))
    return WeightTensor("w", encoding, (num_outputs, num_inputs), data)


def float_tensor(values: np.ndarray) -> WeightTensor:
    """A float32 matrix as a weight."""
    values = np.ascontiguousarray(values, np.float32)
    return WeightTensor("x", "F32", values.shape, np.atleast_2d(values).view(np.uint8))
