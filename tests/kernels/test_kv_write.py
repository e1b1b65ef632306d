"""Native rotary embedding and KV write: the bytes that the NumPy codec writes, and no others."""

import numpy as np
import pytest
from attention_case import ISAS, LAYER, Native, Shape, make_paged, make_sequence

from octavo.attention.oracle import rotate
from octavo.storage.codec import decode, encode, read_kv, write_kv


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "block_size"),
    [(64, 64, 16), (80, 80, 8), (16, 16, 24), (128, 32, 64), (96, 20, 40)],
)
def test_rope_and_write(head_dim, rotary_dim, block_size, threads, dtype, isa):  # noqa: PLR0917
    shape = Shape(6, 2, head_dim, dtype)
    rng = np.random.default_rng(0)
    angles = rng.uniform(-3, 3, (300, rotary_dim // 2)).astype(np.float32)
    paged = make_paged(
        shape, [make_sequence(shape, n, seed=n) for n in (1, 70, 130, 64)], block_size, fill=False
    )
    native = Native(paged, isa=isa, threads=threads, angles=angles)
    work = [(1, 69, 70), (2, 3, 130), (0, 0, 1), (3, 31, 64)]
    step, _ = paged.step(work)
    qkv = rng.standard_normal((step.num_tokens, 10, head_dim)).astype(np.float32)
    before = paged.arena.data.copy()
    q = native.rope_and_write(step, qkv)

    cos, sin = native.cos[step.positions], native.sin[step.positions]
    np.testing.assert_allclose(q, rotate(qkv[:, :6], cos, sin), rtol=0, atol=2e-6)
    after = paged.arena.data.copy()
    paged.arena.data[:] = before
    k = rotate_in_float32(qkv[:, 6:8], cos, sin)
    for (i, start, _), at, stop in zip(work, step.query_start[:-1], step.query_start[1:], strict=True):
        k_of_row, v_of_row = k[at:stop], qkv[at:stop, 8:]
        write_kv(paged.arena, LAYER, paged.tables, paged.rows[i], start, k=k_of_row, v=v_of_row)
    np.testing.assert_array_equal(after, paged.arena.data)
    assert not np.array_equal(after, before)


def rotate_in_float32(x, cos, sin):
    """Each product and each sum rounded, as the kernel does."""
    half = cos.shape[-1]
    c, s = cos[:, None], sin[:, None]
    first, second = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([first * c - second * s, second * c + first * s, x[..., 2 * half :]], axis=-1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_chunks_write_the_same_bytes(dtype, isa):
    shape = Shape(2, 2, 32, dtype)
    qkv = np.random.default_rng(1).standard_normal((50, 6, 32)).astype(np.float32)
    contents, outputs = [], []
    for size in (50, 1, 7, 16):
        paged = make_paged(shape, [make_sequence(shape, 50, seed=0)], 16, fill=False)
        angles = np.linspace(0, 60, 60 * 16, dtype=np.float32).reshape(60, 16)
        native = Native(paged, isa=isa, threads=2, angles=angles)
        chunks = [(start, min(start + size, 50)) for start in range(0, 50, size)]
        out = [native.rope_and_write(paged.step([(0, a, b)])[0], qkv[a:b]) for a, b in chunks]
        outputs.append(np.concatenate(out))
        contents.append(paged.arena.data.copy())
    for output, content in zip(outputs[1:], contents[1:], strict=True):
        np.testing.assert_array_equal(output, outputs[0])
        np.testing.assert_array_equal(content, contents[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_of_all_magnitudes(dtype, isa):
    """Subnormals, ties, and what is too large, as the NumPy codec rounds them."""
    shape = Shape(1, 1, 256, dtype)
    rng = np.random.default_rng(2)
    values = (rng.integers(0, 1 << 32, (16, 256), np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    exponents = rng.integers(-30, 20, (24, 256))
    some = (rng.integers(-4096, 4096, (24, 256)) * 2.0**-11 * 2.0**exponents).astype(np.float32)
    some[0, :6] = [65504, 65519, 65520, -1e6, np.inf, -np.inf]
    v = np.concatenate([values, some])[:, None]
    paged = make_paged(shape, [make_sequence(shape, 40, seed=0)], 8, fill=False)
    qkv = np.concatenate([np.zeros_like(v), np.zeros_like(v), v], axis=1)
    Native(paged, isa=isa).rope_and_write(paged.step([(0, 0, 40)])[0], qkv)
    _, found = read_kv(paged.arena, LAYER, paged.tables, paged.rows[0], 40)
    np.testing.assert_array_equal(found, decode(encode(v, dtype)))
    assert np.isnan(found).any()
