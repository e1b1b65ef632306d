"""Native paged attention: near the float64 oracle, and the same to the last bit however the work is cut."""

import dataclasses
import functools

import numpy as np
import pytest
from attention_case import ISAS, LAYER, Native, Paged, Sequence, Shape, make_paged, make_sequence
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.attention.oracle import paged_attention

DTYPES = ["float32", "bfloat16", "float16", "int8"]
BLOCK_SIZES = [8, 16, 24, 40, 64, 128]
EDGES = [1, 7, 8, 9, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025]
each_isa = pytest.mark.parametrize("isa", ISAS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def tolerance(isa: str, dtype: str) -> float:
    """Values reach about 5. bf16 dot products round queries and weights to 8 bits, int8 ones queries to 7."""
    if dtype == "int8":
        return 1e-1
    return 3e-2 if isa.endswith("bf16") and dtype == "bfloat16" else 1e-5


def check_against_oracle(paged: Paged, work, *, isa: str, threads: int = 1) -> np.ndarray:
    step, q = paged.step(work)
    out = Native(paged, isa=isa, threads=threads).attend(step, q)
    expected = paged_attention(q, step, paged.arena, LAYER, window=paged.shape.window)
    np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance(isa, paged.shape.dtype))
    return out


@functools.cache
def sequences_of(shape: Shape, lengths: tuple[int, ...]):
    return [make_sequence(shape, n, seed=100 + i) for i, n in enumerate(lengths)]


def compute(shape: Shape, length: int, cuts: list[int], *, isa: str, block_size: int = 16, threads: int = 1):
    """A sequence's outputs, computed in steps [0, cuts[0]), [cuts[0], cuts[1]) ...

    K and V are written step by step, so that no step could see what comes later.
    """
    paged = make_paged(shape, sequences_of(shape, (length,)), block_size, seed=block_size, fill=False)
    native = Native(paged, isa=isa, threads=threads)
    outputs = []
    for start, stop in zip([0, *cuts], [*cuts, length], strict=True):
        paged.write(0, start, stop)
        outputs.append(native.attend(*paged.step([(0, start, stop)])))
    return np.concatenate(outputs)


@each_isa
@each_dtype
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [
        (4, 4, 64),
        (9, 3, 64),
        (8, 1, 128),
        (16, 1, 32),
        (5, 1, 80),
        (6, 2, 96),
        (2, 2, 16),
        (3, 1, 256),
        (7, 1, 112),
    ],
)
def test_matches_oracle_in_a_mixed_batch(num_heads, num_kv_heads, head_dim, dtype, isa):
    shape = Shape(num_heads, num_kv_heads, head_dim, dtype)
    lengths = tuple(int(n) for n in np.random.default_rng(head_dim).integers(1, 300, 5))
    paged = make_paged(shape, sequences_of(shape, lengths), BLOCK_SIZES[num_heads % len(BLOCK_SIZES)])
    work = [(0, lengths[0] - 1, lengths[0]), (3, 0, lengths[3]), (1, lengths[1] - 1, lengths[1])]
    work += [(2, lengths[2] // 2, lengths[2]), (4, lengths[4] // 3, lengths[4] // 2 + 1)]
    check_against_oracle(paged, work, isa=isa)


@each_isa
@each_dtype
def test_matches_oracle_around_tile_and_partition_edges(dtype, isa):
    shape = Shape(3, 1, 16, dtype)
    paged = make_paged(shape, sequences_of(shape, tuple(EDGES)), 16)
    check_against_oracle(paged, [(i, n - 1, n) for i, n in enumerate(EDGES)], isa=isa, threads=2)
    check_against_oracle(paged, [(i, max(0, n - 9), n) for i, n in enumerate(EDGES)], isa=isa, threads=2)


@each_isa
@each_dtype
def test_block_size_changes_nothing(dtype, isa):
    shape = Shape(6, 2, 32, dtype)
    lengths = (300, 17, 129)
    outputs = []
    for block_size in BLOCK_SIZES:
        paged = make_paged(shape, sequences_of(shape, lengths), block_size, seed=block_size)
        work = [(0, 299, 300), (1, 0, 17), (2, 50, 129)]
        outputs.append(check_against_oracle(paged, work, isa=isa))
    for other in outputs[1:]:
        np.testing.assert_array_equal(other, outputs[0])


@each_isa
@each_dtype
def test_separate_tables_for_k_and_v_change_nothing(dtype, isa):
    shape = Shape(4, 2, 64, dtype)
    one, two = (
        make_paged(shape, sequences_of(shape, (200, 33)), 24, split_tables=split) for split in (False, True)
    )
    work = [(0, 150, 200), (1, 32, 33)]
    expected = check_against_oracle(one, work, isa=isa)
    np.testing.assert_array_equal(check_against_oracle(two, work, isa=isa), expected)


@each_isa
@each_dtype
@pytest.mark.parametrize("window", [None, 100])
def test_chunks_change_nothing(dtype, window, isa):
    shape = Shape(3, 1, 32, dtype, window)
    whole = compute(shape, 700, [], isa=isa, threads=2)
    for size in (15, 16, 17, 100):
        np.testing.assert_array_equal(compute(shape, 700, list(range(size, 700, size)), isa=isa), whole)
    one_by_one = compute(shape, 40, list(range(1, 40)), isa=isa)
    np.testing.assert_array_equal(one_by_one, compute(shape, 40, [], isa=isa))


@each_isa
@each_dtype
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 1), (8, 1), (2, 2)])
def test_company_changes_nothing(num_heads, num_kv_heads, dtype, isa):
    shape = Shape(num_heads, num_kv_heads, 64, dtype)
    lengths = (1, 40, 127, 300, 600, 1100, 8)
    paged = make_paged(shape, sequences_of(shape, lengths), 16)
    native = Native(paged, isa=isa, threads=2)
    work = [(i, max(0, n - 1 - 20 * (i % 2)), n) for i, n in enumerate(lengths)]
    step, q = paged.step(work)
    together = native.attend(step, q)
    for j, item in enumerate(work):
        alone = native.attend(*paged.step([item]))
        np.testing.assert_array_equal(together[step.query_start[j] : step.query_start[j + 1]], alone)
    backwards = native.attend(*paged.step(work[::-1]))
    np.testing.assert_array_equal(
        backwards[: len(together) - step.query_start[-2]], together[step.query_start[-2] :]
    )


@each_isa
@each_dtype
def test_threads_change_nothing(dtype, isa):
    shape = Shape(6, 2, 64, dtype)
    paged = make_paged(shape, sequences_of(shape, (2500, 100, 1300)), 32)
    for work in (
        [(0, 2499, 2500)],
        [(0, 2400, 2500), (1, 99, 100)],
        [(0, 2499, 2500), (1, 0, 100), (2, 1299, 1300)],
    ):
        expected = check_against_oracle(paged, work, isa=isa, threads=1)
        for threads in (2, 3, 4):
            out = Native(paged, isa=isa, threads=threads).attend(*paged.step(work))
            np.testing.assert_array_equal(out, expected)


@each_isa
@each_dtype
@pytest.mark.parametrize("window", [1, 5, 64, 128, 130, 600])
def test_sliding_window(window, dtype, isa):
    shape = Shape(4, 2, 32, dtype, window)
    lengths = (1400, 257, 3)
    paged = make_paged(shape, sequences_of(shape, lengths), 8)
    work = [(0, 1350, 1400), (1, 256, 257), (2, 0, 3)]
    expected = check_against_oracle(paged, work, isa=isa, threads=2)
    # Blocks that fell out of the window go back to the pool: their entries name the null block, of NaNs here.
    for i, start, _ in work:
        paged.tables[0][paged.rows[i], : max(0, start - window + 1) // 8] = 0
    step, q = paged.step(work)
    np.testing.assert_array_equal(Native(paged, isa=isa).attend(step, q), expected)


@each_isa
@each_dtype
def test_window_that_sees_all_changes_nothing(dtype, isa):
    lengths = (900, 100)
    outputs = []
    for window in (None, 900, 5000):
        shape = Shape(3, 1, 32, dtype, window)
        paged = make_paged(shape, sequences_of(Shape(3, 1, 32, dtype), lengths), 16)
        outputs.append(check_against_oracle(paged, [(0, 850, 900), (1, 0, 100)], isa=isa))
    np.testing.assert_array_equal(outputs[1], outputs[0])
    np.testing.assert_array_equal(outputs[2], outputs[0])


@each_isa
@each_dtype
def test_equal_values_average_to_themselves(dtype, isa):
    """The weights add up to one: also where they are rounded."""
    shape = Shape(3, 1, 64, dtype)
    sequence = make_sequence(shape, 600, seed=3)
    sequence.v[:] = 1.5
    paged = make_paged(shape, [sequence], 16)
    out = Native(paged, isa=isa).attend(*paged.step([(0, 500, 600)]))
    np.testing.assert_allclose(out, 1.5, rtol=1e-4 if dtype == "int8" else 3e-6)


@each_isa
@each_dtype
def test_extreme_scores(dtype, isa):
    """Scores of thousands, of both signs: no overflow, and all the weight on the largest."""
    shape = Shape(2, 1, 16, dtype)
    sequence = make_sequence(shape, 300, seed=4)
    sequence.q[:] = 64.0
    sequence.k[:] = -64.0
    sequence.k[137] = 64.0
    paged = make_paged(shape, [sequence], 16)
    out = Native(paged, isa=isa).attend(*paged.step([(0, 0, 300)]))
    expected = paged_attention(sequence.q, paged.step([(0, 0, 300)])[0], paged.arena, LAYER)
    np.testing.assert_allclose(out, expected, atol=1e-4 if dtype == "int8" else 1e-5)
    np.testing.assert_array_equal(out[137:], np.broadcast_to(out[137], out[137:].shape))


def with_common_prefix(sequence, other, num_tokens):
    """``sequence`` with the first tokens' K and V of ``other``."""
    k, v = sequence.k.copy(), sequence.v.copy()
    k[:num_tokens], v[:num_tokens] = other.k[:num_tokens], other.v[:num_tokens]
    return Sequence(sequence.q, k, v)


@each_isa
@each_dtype
@pytest.mark.parametrize("block_size", [8, 24, 64])
def test_common_blocks_change_nothing(block_size, dtype, isa):
    """Rows whose tables begin with the same blocks, as a tree, and the same rows with blocks of their own."""
    shape = Shape(6, 2, 32, dtype)
    lengths = (1700, 1100, 1537, 1600, 700, 540, 640, 300, 1541, 520)
    # Each sequence begins like an earlier one, for so many tokens.
    family = [None, (0, 1030), (0, 1536), (2, 1536), None, (4, 530), (4, 600), None, (0, 800), (4, 500)]
    sequences = []
    for sequence, like in zip(sequences_of(shape, lengths), family, strict=True):
        sequences.append(with_common_prefix(sequence, sequences[like[0]], like[1]) if like else sequence)
    paged = make_paged(shape, sequences, block_size)
    work = [(i, n - 1 - i % 3, n) for i, n in enumerate(lengths)]
    step, q = paged.step(work)
    expected = paged_attention(q, step, paged.arena, LAYER)
    apart = Native(paged, isa=isa, threads=2).attend(step, q)
    np.testing.assert_allclose(apart, expected, rtol=0, atol=tolerance(isa, dtype))
    for i, like in enumerate(family):
        if like:
            common, row, other = like[1] // block_size, paged.rows[i], paged.rows[like[0]]
            paged.tables[0][row, :common] = paged.tables[0][other, :common]
    for threads in (1, 2, 3):
        together = Native(paged, isa=isa, threads=threads).attend(*paged.step(work))
        np.testing.assert_array_equal(together, apart)
    for item in work[:4]:
        alone = Native(paged, isa=isa).attend(*paged.step([item]))
        np.testing.assert_array_equal(alone, apart[step.query_start[item[0]] : step.query_start[item[0] + 1]])


PARTITION = 512  # keys


@pytest.mark.parametrize("threads", [1, 3])
def test_common_blocks_are_read_once(threads):
    shape = Shape(6, 2, 32)
    lengths = (1700, 1100, 1600, 700)
    sequences = list(sequences_of(shape, lengths))
    for i in (1, 2):
        sequences[i] = with_common_prefix(sequences[i], sequences[0], 1030)
    paged = make_paged(shape, sequences, 16)
    step, q = paged.step([(i, n - 1, n) for i, n in enumerate(lengths)])
    native = Native(paged, isa=ISAS[0], threads=threads)
    apart, pieces_apart = native.attend(step, q), native.pieces(step, q)
    for i in (1, 2):
        paged.tables[0][paged.rows[i], : 1030 // 16] = paged.tables[0][paged.rows[0], : 1030 // 16]
    step, _ = paged.step([(i, n - 1, n) for i, n in enumerate(lengths)])
    together, pieces = native.attend(step, q), native.pieces(step, q)
    np.testing.assert_array_equal(together, apart)

    assert all(len(tokens) == 1 for _, tokens, _, _ in pieces_apart)
    shared = sorted((first, end, sorted(tokens)) for _, tokens, first, end in pieces if len(tokens) > 1)
    assert {tuple(tokens) for _, _, tokens in shared} == {(0, 1, 2)}
    assert [part for first, end, _ in shared for part in range(first, end)] == [0, 1]  # 1024 of 1030 tokens
    assert {row for row, tokens, _, _ in pieces if len(tokens) > 1} <= {paged.rows[i] for i in range(3)}
    for found in (pieces, pieces_apart):
        for token, length in enumerate(lengths):
            parts = [part for _, tokens, first, end in found if token in tokens for part in range(first, end)]
            assert sorted(parts) == list(range(-(-length // PARTITION)))


@each_isa
@each_dtype
@pytest.mark.parametrize("window", [None, 1, 5, 40, 150])
def test_a_broken_value_reaches_those_who_see_it(window, dtype, isa):
    """And no one else, be they earlier tokens or some whose window has moved on, in the same step or not."""
    shape = Shape(6, 2, 32, dtype, window)
    clean = make_sequence(shape, 300, seed=7)
    broken = Sequence(clean.q, clean.k, clean.v.copy())
    broken.v[131], broken.v[139], broken.v[207, 1, 3] = np.nan, np.inf, -np.inf
    position = np.arange(300)[:, None]
    sees = (position >= [131, 139, 207]) & (position < np.array([131, 139, 207]) + (window or 300))
    native, expected = (
        Native(make_paged(shape, [s], 24), isa=isa, threads=2).attend for s in (broken, clean)
    )
    paged = make_paged(shape, [clean], 24)
    for start, stop in [(0, 300), (100, 150), (132, 140), (207, 208), (280, 281)]:
        step, q = paged.step([(0, start, stop)])
        out, intact = native(step, q), expected(step, q)
        unaware = ~sees[start:stop].any(1)
        np.testing.assert_array_equal(out[unaware], intact[unaware])
        assert np.isfinite(intact).all()
        assert np.isnan(out[sees[start:stop, 0]]).all()


@each_isa
@each_dtype
def test_a_broken_neighbour_stays_alone(dtype, isa):
    shape = Shape(3, 1, 32, dtype)
    good, bad = (make_sequence(shape, 200, seed=i) for i in (5, 6))
    bad.k[60], bad.v[61], bad.q[150:] = np.nan, np.inf, np.nan
    paged = make_paged(shape, [good, bad], 16)
    native = Native(paged, isa=isa)
    out = native.attend(*paged.step([(1, 199, 200), (0, 150, 200)]))
    np.testing.assert_array_equal(out[1:], native.attend(*paged.step([(0, 150, 200)])))
    assert np.isfinite(out[1:]).all()
    assert np.isnan(out[0]).all()
    before_the_fault = native.attend(*paged.step([(1, 30, 60)]))
    assert np.isfinite(before_the_fault).all()


@pytest.mark.parametrize(
    ("head_dim", "block_size", "message"),
    [
        (24, 8, "head_dim=24: .* multiple of 16, at most 256"),
        (272, 8, "head_dim=272: .* multiple of 16, at most 256"),
        (16, 12, "block_size=12: must be a multiple of 8"),
    ],
)
def test_shapes_without_kernels_are_refused(head_dim, block_size, message):
    paged = make_paged(Shape(2, 1, head_dim), [make_sequence(Shape(2, 1, head_dim), 8, seed=0)], 8)
    layout = paged.arena.layout
    layers = tuple(dataclasses.replace(layer, block_size=block_size) for layer in layout.layers)
    paged.arena.layout = dataclasses.replace(layout, layers=layers)
    step, q = paged.step([(0, 7, 8)])
    with pytest.raises(ValueError, match=message):
        Native(paged, isa=ISAS[0]).attend(step, q)
    with pytest.raises(ValueError, match=message):
        Native(paged, isa=ISAS[0]).rope_and_write(step, np.zeros((1, 4, head_dim), np.float32))


@each_dtype
def test_instruction_sets_agree(dtype):
    """All that fuse multiply and add, and do not round to bf16, give the same bits."""
    shape = Shape(6, 2, 80, dtype)
    paged = make_paged(shape, sequences_of(shape, (333, 600)), 16)
    work = [(0, 200, 333), (1, 599, 600)]
    outputs = {isa: check_against_oracle(paged, work, isa=isa) for isa in ISAS}
    same = [isa for isa in ISAS if isa != "generic" and (not isa.endswith("bf16") or dtype != "bfloat16")]
    for isa in same:
        np.testing.assert_array_equal(outputs[isa], outputs[same[0]])


@st.composite
def batches(draw):
    group = draw(st.integers(1, 16))
    kv_heads = draw(st.integers(1, 3 if group < 6 else 1))
    head_dim = 16 * draw(st.integers(1, 8))
    window = draw(st.none() | st.integers(1, 400))
    shape = Shape(group * kv_heads, kv_heads, head_dim, draw(st.sampled_from(DTYPES)), window)
    lengths = draw(st.lists(st.integers(1, 300) | st.sampled_from(EDGES), min_size=1, max_size=4))
    work = []
    for i, length in enumerate(lengths):
        stop = draw(st.integers(1, length))
        start = draw(st.integers(max(0, stop - 60), stop - 1))
        work.append((i, start, stop))
    block_size = 8 * draw(st.integers(1, 16))
    return shape, tuple(lengths), work, block_size, draw(st.sampled_from(ISAS)), draw(st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(batches())
def test_matches_oracle_on_random_batches(batch):
    shape, lengths, work, block_size, isa, threads = batch
    paged = make_paged(shape, sequences_of(shape, lengths), block_size)
    check_against_oracle(paged, work, isa=isa, threads=threads)
