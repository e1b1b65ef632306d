"""Groups of layers: what is accepted, what it wastes, and where the tiles lie."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import InvalidConfig
from octavo.paging import GroupPlan, GroupSpec, KVManager, plan_groups
from octavo.paging.groups import parse_block_sizes
from octavo.storage.layout import DTYPE_BYTES, KVLayout

SMOLLM2 = {"num_layers": 30, "num_kv_heads": 3, "token_bytes": 64 * 2}
MIXED = {"0-9": 64, "10-19": 16, "20-29": 8}


def layout_of(plan: GroupPlan, num_kv_heads: int, head_dim: int, dtype="bfloat16") -> KVLayout:
    return KVLayout.grouped(
        plan.placement,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        frame_bytes=plan.frame_bytes,
        dtype=dtype,
    )


# Ranges


def test_one_size_is_for_all_layers():
    assert parse_block_sizes(16, 3) == [16, 16, 16]


def test_ranges_may_be_lists_and_come_in_any_order():
    assert parse_block_sizes({"2-3": 8, "0, 4": 32, "1": 64}, 5) == [32, 64, 8, 8, 32]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"0-9": 16}, "layers 10-29 have none"),
        ({"0-9": 16, "11-29": 8}, "layers 10 have none"),
        ({"0-9": 16, "9-29": 8}, "'9-29'.*layer 9 has a block size already"),
        ({"0-30": 16}, "layer 30 of a model with 30 layers"),
        ({"9-0": 16}, "'9-0'.*not layers"),
        ({"all": 16}, "'all'.*not layers"),
        ({"0-29,": 16}, "not layers"),
        ({"-1": 16}, "not layers"),
        ({"0-29": 12}, "block size 12: must be a multiple of 8 from 8 to 128"),
        ({"0-29": 136}, "block size 136"),
        ({"0-29": 0}, "block size 0"),
        (4, "block size 4"),
        (-8, "block size -8"),
    ],
)
def test_wrong_ranges_and_sizes_are_refused_by_name(sizes, message):
    with pytest.raises(InvalidConfig, match=message):
        plan_groups(sizes, **SMOLLM2)


def test_one_window_per_layer():
    with pytest.raises(InvalidConfig, match="2 windows for 30 layers"):
        plan_groups(16, **SMOLLM2, windows=[None, 5])


# Plans


def test_one_size_is_one_table_without_padding():
    plan = plan_groups(16, **SMOLLM2)
    assert plan.padding == 0
    assert plan.specs == (GroupSpec(16, None, 1),)
    assert plan.frame_bytes == 30 * 3 * 2 * 16 * 64 * 2
    assert plan.bytes_per_token == 30 * 3 * 2 * 64 * 2


def test_the_mixed_example_wastes_four_percent():
    plan = plan_groups(MIXED, **SMOLLM2)
    assert plan.frame_bytes == 480 * 128
    assert [(g.tiles_per_frame, g.num_tables) for g in plan.groups] == [(7, 9), (30, 2), (60, 1)]
    assert [g.padding for g in plan.groups] == pytest.approx([1 - 60 * 64 / (9 * 480), 0, 0])
    assert plan.padding == pytest.approx(0.04)
    assert plan.bytes_per_token == pytest.approx(30 * 3 * 2 * 128 / 0.96)
    assert "4.0% padding in total" in plan.describe()


def test_halves_that_divide_evenly_waste_nothing():
    plan = plan_groups({"0-14": 32, "15-29": 16}, **SMOLLM2)
    assert plan.padding == 0
    assert [(g.tiles_per_frame, g.num_tables) for g in plan.groups] == [(45, 2), (90, 1)]


def test_equal_sizes_in_two_ranges_are_one_group():
    assert plan_groups({"0-4": 16, "5-29": 16}, **SMOLLM2) == plan_groups(16, **SMOLLM2)


def test_windows_split_groups():
    plan = plan_groups(16, **SMOLLM2, windows=[4096, None] * 15)
    assert [(g.layers[:2], g.window) for g in plan.groups] == [((0, 2), 4096), ((1, 3), None)]
    assert plan.padding == 0
    assert sum(spec.num_tables for spec in plan.specs) == 2


def test_too_much_padding_is_refused_with_numbers_and_a_choice_that_fits():
    model = {"num_layers": 2, "num_kv_heads": 1, "token_bytes": 128}
    with pytest.raises(InvalidConfig) as caught:
        plan_groups({"0": 128, "1": 8}, **model)
    message = str(caught.value)
    # Two tiles of 8 tokens in a frame that must hold one tile of 128: 1 - 4 / (2 + 16).
    assert "77.8% of the KV pool at best, the limit is 5%" in message
    assert "layers 1: blocks of 8 tokens" in message
    assert 'the nearest choice that fits is {"0": 128, "1": 64} with 0.0% padding' in message
    assert plan_groups({"0": 128, "1": 64}, **model).padding == 0


def test_a_tile_that_is_not_aligned_is_refused():
    with pytest.raises(InvalidConfig, match="a tile of 160 bytes is no multiple of 64"):
        plan_groups(8, num_layers=2, num_kv_heads=1, token_bytes=20)


sizes = st.integers(1, 16).map(lambda n: 8 * n)


@settings(max_examples=150, deadline=None)
@given(
    block_sizes=st.lists(sizes, min_size=1, max_size=4),
    layers_each=st.integers(1, 12),
    num_kv_heads=st.sampled_from([1, 2, 3, 8]),
    windowed=st.booleans(),
)
def test_what_is_accepted_is_laid_out_without_overlap(block_sizes, layers_each, num_kv_heads, windowed):
    num_layers = len(block_sizes) * layers_each
    ranges = {f"{i * layers_each}-{(i + 1) * layers_each - 1}": size for i, size in enumerate(block_sizes)}
    windows = [64 if windowed and layer % 2 else None for layer in range(num_layers)]
    try:
        plan = plan_groups(
            ranges, num_layers=num_layers, num_kv_heads=num_kv_heads, token_bytes=32, windows=windows
        )
    except InvalidConfig as refusal:
        check_refusal(str(refusal), num_layers, num_kv_heads, windows)
        return
    assert 0 <= plan.padding <= 0.05
    layout = layout_of(plan, num_kv_heads, 16)
    check_layout(layout, num_layers, num_kv_heads, 16)
    assert layout.num_tables == sum(spec.num_tables for spec in plan.specs)
    used = sum(
        2 * num_kv_heads * 16 * 2 for _ in range(num_layers)
    )  # bytes that one token needs over all layers
    assert used / plan.bytes_per_token == pytest.approx(1 - plan.padding)


def check_refusal(message: str, num_layers: int, num_kv_heads: int, windows) -> None:
    """What the refusal recommends is accepted."""
    choice = re.search(r"the nearest choice that fits is (\{.*?\}|\d+)", message)
    assert choice is not None
    plan = plan_groups(
        json.loads(choice[1]),
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        token_bytes=32,
        windows=windows,
    )
    assert plan.padding <= 0.05


# Layouts


def check_layout(layout: KVLayout, num_layers: int, num_kv_heads: int, head_dim: int) -> None:
    """Every tile has a place of its own, inside a frame, aligned, in a table of its block size."""
    places: dict[int, list[tuple[int, int]]] = {}
    assert len(layout.layers) == num_layers
    for window in layout.layers:
        assert len(window.k_tiles) == len(window.v_tiles) == num_kv_heads
        size = window.block_size * head_dim * DTYPE_BYTES[layout.dtype]
        for tile in (*window.k_tiles, *window.v_tiles):
            assert layout.table_block_sizes[tile.table] == window.block_size
            assert tile.offset % 64 == 0
            assert tile.offset + size <= layout.frame_bytes
            places.setdefault(tile.table, []).append((tile.offset, tile.offset + size))
    assert sorted(places) == list(range(layout.num_tables)), "no table is empty"
    for spans in places.values():
        spans.sort()
        assert all(left[1] <= right[0] for left, right in pairwise(spans))


def test_the_uniform_layout_is_the_grouped_one_with_one_group():
    uniform = KVLayout.uniform(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, dtype="bfloat16")
    assert layout_of(plan_groups(16, **SMOLLM2), 3, 64) == uniform
    check_layout(uniform, 30, 3, 64)
    assert uniform.table_block_sizes == (16,)
    assert uniform.frame_bytes == 30 * 3 * 2 * 16 * 64 * 2
    assert [t.offset for t in uniform.layers[1].k_tiles] == [(6 + 2 * h) * 2048 for h in range(3)]
    assert [t.offset for t in uniform.layers[1].v_tiles] == [(7 + 2 * h) * 2048 for h in range(3)]


def test_the_mixed_layout_has_the_managers_tables():
    plan = plan_groups(MIXED, **SMOLLM2)
    layout = layout_of(plan, 3, 64)
    check_layout(layout, 30, 3, 64)
    assert layout.table_block_sizes == (64,) * 9 + (16,) * 2 + (8,)
    kv = KVManager(num_blocks=100, groups=plan.specs)
    seq = kv.create_sequence(range(100))
    kv.commit(kv.plan_slots(seq, 100))
    assert [len(table) for table in kv.block_tables(seq)] == [2] * 9 + [7] * 2 + [13]


def test_layouts_that_differ_have_different_names():
    def name(sizes, **changes):
        return layout_of(plan_groups(sizes, **{**SMOLLM2, **changes}), 3, 64).name

    names = [
        name(16),
        name(32),
        name(MIXED),
        name({"0-9": 8, "10-19": 16, "20-29": 64}),
        name({"0-14": 32, "15-29": 16}),
        name({"0-14": 16, "15-29": 32}),
        name(16, windows=[8, None] * 15),
        name(16, windows=[8] * 15 + [None] * 15),
    ]
    assert len(set(names)) == len(names)
    assert names[0] == "rows8/bfloat16/L30/H3/D64/P16"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([(range(2), 16, 4), (range(1, 3), 16, 4)], "layer 1 is in two groups"),
        ([(range(1, 3), 16, 4)], "each from 0 on is needed once"),
        ([(range(2), 16, 9)], "9 tiles of 2048 bytes in a frame of 8192"),
        ([(range(2), 16, 0)], "0 tiles"),
    ],
)
def test_layouts_that_cannot_be_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        KVLayout.grouped(groups, num_kv_heads=1, head_dim=64, frame_bytes=8192, dtype="bfloat16")
