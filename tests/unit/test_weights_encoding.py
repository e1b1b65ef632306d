"""Values, sizes and reordering of the encodings, against the gguf library and torch."""

import gguf
import numpy as np
import pytest
import torch

from octavo.weights.encoding import dequantize, permute_rows, row_bytes
from octavo.weights.tensor import BLOCK_OF, WeightTensor

ENCODINGS = sorted(BLOCK_OF)


def random_tensor(encoding: str, shape: tuple[int, ...], seed: int = 0) -> WeightTensor:
    """Random bytes: every pattern is a value, infinities, NaNs and subnormal scales among them."""
    rng = np.random.default_rng(seed)
    num_rows = int(np.prod(shape[:-1]))
    data = rng.integers(0, 256, (num_rows, row_bytes(encoding, shape[-1])), np.uint8)
    return WeightTensor("w", encoding, shape, data)


def assert_same_floats(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal to the bit, except that a NaN equals any NaN."""
    assert actual.dtype == expected.dtype == np.float32
    assert actual.shape == expected.shape
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(actual), ~numbers)
    assert np.array_equal(actual[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("shape", [(1, 32), (7, 96), (3, 5, 64), (700, 4096)])
def test_dequantize_equals_the_gguf_library(encoding, shape):
    if BLOCK_OF[encoding][0] == 256:
        shape = (*shape[:-1], max(shape[-1] // 256, 1) * 256)
    tensor = random_tensor(encoding, shape)
    expected = gguf.dequantize(tensor.data, gguf.GGMLQuantizationType[encoding]).reshape(shape)
    assert_same_floats(dequantize(tensor), expected)


@pytest.mark.parametrize(("encoding", "dtype"), [("BF16", torch.bfloat16), ("F16", torch.float16)])
def test_dequantize_equals_torch_for_every_16_bit_pattern(encoding, dtype):
    data = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(256, 512)
    expected = torch.from_numpy(data.copy()).view(dtype).to(torch.float32).numpy()
    assert_same_floats(dequantize(WeightTensor("w", encoding, (256, 256), data)), expected)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_dequantize_returns_what_the_library_quantized(encoding):
    values = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    data = gguf.quantize(values, gguf.GGMLQuantizationType[encoding]).view(np.uint8)
    error = np.abs(dequantize(WeightTensor("w", encoding, (8, 64), data)) - values).max()
    assert error <= {"F32": 0, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2, "Q4_0": 0.4, "Q4_1": 0.2}[encoding]


def test_dequantize_reads_the_nibbles_in_the_documented_order():
    scale = np.array([2.0, 10.0], np.float16).view(np.uint8)
    packed = np.arange(16, dtype=np.uint8) | (15 - np.arange(16, dtype=np.uint8)) << 4
    data = np.concatenate([scale, packed]).reshape(1, 20)
    expected = 2.0 * np.r_[np.arange(16), 15 - np.arange(16)] + 10.0
    assert dequantize(WeightTensor("w", "Q4_1", (32,), data)).tolist() == expected.tolist()


def test_dequantize_reads_unaligned_and_read_only_bytes():
    values = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    shifted = np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].reshape(3, 16)
    assert not shifted.flags.writeable
    assert np.array_equal(dequantize(WeightTensor("w", "F32", (3, 4), shifted)), values)


def test_dequantize_of_a_scalar():
    data = np.array([[1.5]], np.float32).view(np.uint8)
    value = dequantize(WeightTensor("w", "F32", (), data))
    assert value.shape == ()
    assert value == 1.5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_permute_rows_moves_whole_rows(encoding):
    tensor = random_tensor(encoding, (24, 256))
    order = np.random.default_rng(3).permutation(24)
    permuted = permute_rows(tensor, order)
    assert (permuted.name, permuted.encoding, permuted.shape) == ("w", encoding, (24, 256))
    assert_same_floats(dequantize(permuted), dequantize(tensor)[order])
    back = permute_rows(permuted, np.argsort(order))
    assert np.array_equal(back.data, tensor.data)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16"])
def test_permute_rows_moves_the_values_of_a_vector(encoding):
    tensor = random_tensor(encoding, (10,))
    order = list(range(9, -1, -1))
    assert_same_floats(dequantize(permute_rows(tensor, order)), dequantize(tensor)[order])


@pytest.mark.parametrize(
    "index", [[0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1], [0.0, 1.0, 2.0], [[0, 1, 2]], []]
)
def test_permute_rows_refuses_what_is_no_permutation(index):
    with pytest.raises(ValueError, match=r"not a permutation of the rows of 'w', whose shape is \(3, 32\)"):
        permute_rows(random_tensor("Q4_0", (3, 32)), index)


def test_permute_rows_refuses_a_vector_of_blocks():
    with pytest.raises(ValueError, match="share Q8_0 blocks"):
        permute_rows(random_tensor("Q8_0", (32,)), list(range(32)))


def test_row_bytes():
    blocks = [encoding for encoding in ENCODINGS if BLOCK_OF[encoding][0] < 256]
    sizes = {encoding: row_bytes(encoding, 96) for encoding in blocks}
    assert sizes == {
        "F32": 384, "F16": 192, "BF16": 192, "Q8_0": 102, "Q4_0": 54, "Q4_1": 60, "Q5_0": 66, "Q5_1": 72,
    }  # fmt: skip
    for encoding in ENCODINGS:
        type_name = gguf.GGMLQuantizationType[encoding]
        assert gguf.GGML_QUANT_SIZES[type_name] == BLOCK_OF[encoding]
    with pytest.raises(ValueError, match="33 values are not a whole number of Q4_1 blocks of 32"):
        row_bytes("Q4_1", 33)
