"""Random weights in every encoding, for kernels whose speed does not depend on the values."""

import numpy as np

from octavo.weights.tensor import BLOCK_OF, Encoding, WeightTensor

_MAX_ROWS = 4096  # that differ; a larger matrix repeats them

# Where a block's float16 scale lies, and how much uniform codes, times uniform integer scales, spread.
_SCALES = {
    "Q8_0": (0, 74.0),
    "Q4_0": (0, 4.6),
    "Q4_1": (0, 4.6),
    "Q5_0": (0, 9.2),
    "Q5_1": (0, 9.2),
    "Q2_K": (80, 15.0),
    "Q3_K": (108, 42.0),
    "Q4_K": (0, 250.0),
    "Q5_K": (0, 500.0),
    "Q6_K": (208, 1370.0),
}
# Of encodings with a minimum: what it must be, in units of the scale, for values around zero.
_MIDDLES = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


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
        place, spread_of_codes = _SCALES[encoding]
        blocks = rng.integers(0, 256, (rows, num_inputs // num_values, block_bytes), np.uint8)
        scale = rng.uniform(0.8, 1.2, blocks.shape[:2]) * spread / spread_of_codes
        blocks[..., place : place + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
        if encoding in _MIDDLES:
            minimum = (scale * _MIDDLES[encoding]).astype(np.float16)
            blocks[..., place + 2 : place + 4] = minimum[..., None].view(np.uint8)
        data = blocks.reshape(rows, -1)
    if rows < num_outputs:
        data = np.resize(data, (num_outputs, data.shape[1]))
    return WeightTensor("w", encoding, (num_outputs, num_inputs), data)


def float_tensor(values: np.ndarray) -> WeightTensor:
    """A float32 matrix as a weight."""
    values = np.ascontiguousarray(values, np.float32)
    return WeightTensor("x", "F32", values.shape, np.atleast_2d(values).view(np.uint8))
