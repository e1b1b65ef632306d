import pytest

from octavo.core.config import EngineConfig
from octavo.core.errors import InvalidConfig
from octavo.engine.capacity import plan_capacity, plan_layers
from octavo.models.spec import DecoderSpec, RopeSpec
from octavo.paging.groups import plan_groups
from octavo.storage.layout import KVLayout

FRAME = 4 * 16 * 64  # K and V of two layers with one KV head, 16 tokens of 64 bytes


def plan(*, available: int = 1 << 40, context: int = 2048, windows=None, **settings):
    config = EngineConfig(**settings)
    groups = plan_groups(config.block_sizes, num_layers=2, num_kv_heads=1, token_bytes=64, windows=windows)
    return plan_capacity(config, plan=groups, model_context=context, available_bytes=available)


def test_automatic_pool_is_no_larger_than_the_rows_can_use():
    capacity = plan(max_num_seqs=4, context=160)
    assert capacity.num_blocks == 4 * 10
    assert capacity.num_tokens == 640
    assert capacity.context_len == 160


def test_automatic_pool_takes_half_of_what_is_free():
    capacity = plan(available=200 * FRAME)
    assert capacity.num_frames == 100
    assert capacity.num_bytes <= 100 * FRAME
    assert capacity.context_len == 99 * 16
    assert "the KV pool holds 1584 tokens" in capacity.context_reason


def test_given_memory_is_never_exceeded_and_all_used():
    capacity = plan(kv_memory_bytes=54 * 2 * FRAME + 321, block_size=32)
    assert capacity.num_frames == 54
    assert capacity.num_blocks == 53
    assert capacity.num_tokens == 53 * 32
    assert "1,696 tokens in 53 blocks of 32 (" in str(capacity)
    assert "padding" not in str(capacity)


def test_max_context_limits_a_sequence():
    capacity = plan(max_context=100, max_num_seqs=2)
    assert capacity.context_len == 100
    assert capacity.num_blocks == 2 * 7


def test_too_small_memory_says_needed_had_and_options():
    with pytest.raises(InvalidConfig) as error:
        plan(kv_memory_bytes=2 * FRAME - 1)
    assert "kv_memory is 8.0 KiB (8191 bytes), but a single block takes 8192 bytes" in str(error.value)
    assert "Raise kv_memory" in str(error.value)
    assert plan(kv_memory_bytes=2 * FRAME).num_blocks == 1
    with pytest.raises(
        InvalidConfig, match=r"one sequence of 100 tokens takes 32768 bytes: 8 blocks of 4096"
    ):
        plan(kv_memory_bytes=8 * FRAME - 1, max_context=100)
    assert plan(kv_memory_bytes=8 * FRAME, max_context=100).context_len == 100


def test_context_beyond_the_model_is_refused():
    with pytest.raises(InvalidConfig, match="max_context=4096: the model's limit is 2048"):
        plan(max_context=4096)


# Groups of layers


def test_groups_are_counted_in_frames():
    sizes = {"0": 32, "1": 16}
    capacity = plan(block_size=sizes, max_num_seqs=3, context=96)
    frames = {g.block_size: g.num_tables for g in capacity.plan.groups}
    per_sequence = frames[32] * 3 + frames[16] * 6
    assert capacity.num_blocks == 3 * per_sequence
    assert capacity.num_tokens == 3 * 96
    assert capacity.block_sizes_text == "32/16"


def test_a_pool_that_holds_part_of_a_sequence_of_two_groups():
    sizes = {"0": 32, "1": 16}
    block_bytes = plan(block_size=sizes).block_bytes
    frames = {g.block_size: g.num_tables for g in plan(block_size=sizes).plan.groups}
    for num_tokens in (1, 16, 17, 32, 33, 48):
        needed = frames[32] * -(-num_tokens // 32) + frames[16] * -(-num_tokens // 16)
        capacity = plan(block_size=sizes, kv_memory_bytes=(needed + 1) * block_bytes)
        assert capacity.context_len == -(-num_tokens // 16) * 16
    too_small = sum(frames.values()) * block_bytes
    with pytest.raises(InvalidConfig, match="a block for each layer takes"):
        plan(block_size=sizes, kv_memory_bytes=too_small)


def test_padding_is_told():
    groups = plan_groups({"0-9": 64, "10-19": 16, "20-29": 8}, num_layers=30, num_kv_heads=3, token_bytes=128)
    config = EngineConfig(kv_memory_bytes=64 << 20)
    capacity = plan_capacity(config, plan=groups, model_context=8192, available_bytes=0)
    assert "blocks of 64/16/8 (64.0 MiB, 4.0% padding)" in str(capacity)
    assert capacity.padding == pytest.approx(0.04)
    # 64 tokens take a block of 64 in 9 frames, 4 blocks of 16 in 2 frames each, and 8 blocks of 8.
    assert capacity.num_tokens == capacity.num_blocks * 64 // (9 + 2 * 4 + 8)


def test_a_window_caps_what_a_sequence_needs():
    capacity = plan(windows=[50, 50], max_num_seqs=3, max_step_tokens=64, context=100_000)
    # 50 tokens touch at most 5 blocks of 16: one token of the first, 16 of three, one of the last.
    assert capacity.num_blocks == 3 * 5 + 64 // 16
    assert capacity.context_len == 100_000
    small = plan(windows=[50, 50], kv_memory_bytes=6 * FRAME, context=100_000)
    assert small.context_len == 100_000
    smaller = plan(windows=[50, 50], kv_memory_bytes=5 * FRAME, context=100_000)
    assert smaller.context_len == 4 * 16


def test_a_window_on_some_layers_caps_only_those():
    capacity = plan(windows=[24, None], max_num_seqs=2, max_step_tokens=16, context=160)
    tables = {g.window: g.num_tables for g in capacity.plan.groups}
    per_sequence = tables[24] * 3 + tables[None] * 10
    assert capacity.num_blocks == 2 * per_sequence + tables[24]
    assert capacity.context_len == 160


# Plans and byte layouts

SPEC = DecoderSpec(
    family="llama",
    num_layers=6,
    hidden_size=256,
    intermediate_size=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=48,
    vocab_size=100,
    context_len=512,
    norm_eps=1e-5,
    rope=RopeSpec(10000.0, 48),
    tied_embeddings=True,
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int8"])
@pytest.mark.parametrize(
    "block_size", [16, 48, {"0-1": 16, "2-5": 32}, {"0-2": 64, "3": 16, "4-5": 32}], ids=str
)
def test_a_plan_is_the_layout_to_the_byte(dtype, block_size):
    groups = plan_layers(SPEC, block_size, dtype)
    layout = KVLayout.grouped(
        groups.placement, num_kv_heads=2, head_dim=48, frame_bytes=groups.frame_bytes, dtype=dtype
    )
    assert layout.num_tables == sum(spec.num_tables for spec in groups.specs)
    assert [layout.layers[g.layers[0]].block_size for g in groups.groups] == [
        g.block_size for g in groups.groups
    ]
    if isinstance(block_size, int):
        assert layout == KVLayout.uniform(
            num_layers=6, num_kv_heads=2, head_dim=48, block_size=block_size, dtype=dtype
        )
