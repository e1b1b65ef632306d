"""The float64 reference against attention as loops, and the bytes of a tile against their formula."""

import math

import numpy as np
import pytest
from attention_case import LAYER, Shape, make_paged, make_sequence

from octavo.attention.oracle import attend, paged_attention, rotate
from octavo.storage import codec
from octavo.storage.layout import tile_bytes


def softmax_attention(q, k, v, window=None):
    """One query, one head at a time, in plain Python floats."""
    n, (m, num_heads, head_dim), num_kv_heads = len(k), q.shape, k.shape[1]
    out = np.zeros(q.shape)
    for i in range(m):
        position = n - m + i
        first = 0 if window is None else max(0, position - window + 1)
        for h in range(num_heads):
            kv_head = h // (num_heads // num_kv_heads)
            scores = [
                sum(float(a) * float(b) for a, b in zip(q[i, h], k[j, kv_head], strict=True))
                / math.sqrt(head_dim)
                for j in range(first, position + 1)
            ]
            weights = [math.exp(s - max(scores)) for s in scores]
            for j, weight in enumerate(weights):
                out[i, h] += weight / sum(weights) * v[first + j, kv_head].astype(np.float64)
    return out


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (3, 3), (3, 1), (8, 1), (6, 2)])
@pytest.mark.parametrize(
    ("num_queries", "num_tokens", "window"), [(1, 1, None), (1, 9, None), (5, 5, None), (4, 11, 3)]
)
def test_attend_is_softmax_attention(num_heads, num_kv_heads, num_queries, num_tokens, window):
    s = make_sequence(Shape(num_heads, num_kv_heads, 16), num_tokens, seed=num_tokens)
    q = s.q[-num_queries:]
    expected = softmax_attention(q, s.k, s.v, window)
    np.testing.assert_allclose(attend(q, s.k, s.v, window=window), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("split_tables", [False, True])
@pytest.mark.parametrize("block_size", [8, 24, 64])
def test_paged_attention_reads_through_the_tables(block_size, split_tables):
    shape = Shape(6, 2, 32)
    sequences = [make_sequence(shape, n, seed=n) for n in (1, 30, 70)]
    paged = make_paged(shape, sequences, block_size, split_tables=split_tables)
    step, q = paged.step([(2, 69, 70), (0, 0, 1), (1, 20, 30)])
    out = paged_attention(q, step, paged.arena, LAYER)
    for at, (i, start, stop) in zip([0, 1, 2], [(2, 69, 70), (0, 0, 1), (1, 20, 30)], strict=True):
        s = sequences[i]
        expected = attend(s.q[start:stop], s.k[:stop], s.v[:stop])
        np.testing.assert_array_equal(out[step.query_start[at] : step.query_start[at + 1]], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize(("block_size", "head_dim"), [(8, 16), (24, 80), (128, 64)])
def test_tiles_are_packed_as_the_layout_says(block_size, head_dim, dtype):
    values = np.random.default_rng(0).standard_normal((block_size, head_dim)).astype(np.float32)
    encoded = codec.encode(values, dtype)
    s = encoded.elements.itemsize
    k, v = codec.pack_k(encoded), codec.pack_v(encoded)
    for token in range(block_size):
        for dim in (0, 1, 2, 3, 5, head_dim - 1):
            expected = encoded.elements[token, dim].tobytes()
            line = token // 8 * (head_dim * s // 8) + dim * s // 8
            at = line * 64 + token % 8 * 8 + dim * s % 8
            assert k[at : at + s].tobytes() == (expected if s > 1 else bytes([expected[0] ^ 0x80]))
            unit = 4 // s
            at = ((token // unit * head_dim + dim) * unit + token % unit) * s
            assert v[at : at + s].tobytes() == expected
        if dtype == "int8":
            at = block_size * head_dim + 4 * token
            assert k[at : at + 4].tobytes() == v[at : at + 4].tobytes() == encoded.scales[token].tobytes()
    assert len(k) == len(v) <= tile_bytes(dtype, block_size, head_dim) < len(k) + 64
    for unpacked in (
        codec.unpack_k(k, block_size, head_dim, dtype),
        codec.unpack_v(v, block_size, head_dim, dtype),
    ):
        np.testing.assert_array_equal(unpacked.elements, encoded.elements)
        np.testing.assert_array_equal(codec.decode(unpacked), codec.decode(encoded))


def test_int8_rounds_to_nearest_of_its_head():
    values = np.random.default_rng(0).standard_normal((5, 3, 48)).astype(np.float32)
    values[0, 0] = 0
    values[0, 1, 7] = 1000.0
    decoded = codec.decode(codec.encode(values, "int8"))
    largest = np.abs(values).max(-1, keepdims=True)
    assert (np.abs(decoded - values) <= largest / 253).all()
    np.testing.assert_allclose(np.abs(decoded).max(-1, keepdims=True), largest, rtol=1e-6)
    for broken in (np.nan, np.inf):
        values[1, 0, 5] = broken
        assert np.isnan(codec.decode(codec.encode(values, "int8"))[1, 0]).all()


def test_bfloat16_rounds_to_nearest_even():
    pairs = {
        1.0: 0x3F80,
        1.0 + 2**-8: 0x3F80,  # half way: to the even one
        1.0 + 3 * 2**-8: 0x3F82,
        1.0 + 2**-8 + 2**-20: 0x3F81,
        -(1.0 + 2**-8 + 2**-20): 0xBF81,
        3.4e38: 0x7F80,  # overflows to infinity
        float("inf"): 0x7F80,
        -0.0: 0x8000,
    }
    encoded = codec.encode(np.array(list(pairs), np.float32), "bfloat16")
    assert encoded.elements.tolist() == list(pairs.values())
    assert np.isnan(codec.decode(codec.encode(np.array([np.nan], np.float32), "bfloat16")))[0]


def test_float16_ends_at_its_largest():
    pairs = {
        1.0: 0x3C00,
        1.0 + 2**-11: 0x3C00,  # half way: to the even one
        1.0 + 3 * 2**-11: 0x3C02,
        2.0**-24: 0x0001,
        -(2.0**-25): 0x8000,
        65504.0: 0x7BFF,
        65520.0: 0x7BFF,
        1e30: 0x7BFF,
        -float("inf"): 0xFBFF,
    }
    encoded = codec.encode(np.array(list(pairs), np.float32), "float16")
    assert encoded.elements.view(np.uint16).tolist() == list(pairs.values())
    assert np.isnan(codec.decode(codec.encode(np.array([np.nan], np.float32), "float16")))[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_write_kv_leaves_other_slots_alone(dtype):
    shape = Shape(2, 2, 16, dtype)
    sequence = make_sequence(shape, 40, seed=1)
    paged = make_paged(shape, [sequence], 16, fill=False)
    paged.write(0, 5, 21)
    k, v = codec.read_kv(paged.arena, LAYER, paged.tables, paged.rows[0], 40)
    expected_k = codec.decode(codec.encode(sequence.k, dtype))
    expected_v = codec.decode(codec.encode(sequence.v, dtype))
    np.testing.assert_array_equal(k[5:21], expected_k[5:21])
    np.testing.assert_array_equal(v[5:21], expected_v[5:21])
    assert np.isnan(np.concatenate([k[:5], k[21:], v[:5], v[21:]])).all()


def test_rotate_turns_pairs():
    rng = np.random.default_rng(0)
    x, angle = rng.standard_normal((3, 2, 20)), rng.standard_normal((3, 8))
    out = rotate(x, np.cos(angle), np.sin(angle))
    turned = (x[..., :8] + 1j * x[..., 8:16]) * np.exp(1j * angle)[:, None]
    np.testing.assert_allclose(out[..., :8] + 1j * out[..., 8:16], turned, atol=1e-15)
    np.testing.assert_array_equal(out[..., 16:], x[..., 16:])
