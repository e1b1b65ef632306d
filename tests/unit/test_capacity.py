import pytest

from octavo.core.config import EngineConfig
from octavo.core.errors import InvalidConfig
from octavo.engine.capacity import plan_capacity
from octavo.paging.groups import GroupPlan, plan_groups


def layers(block_sizes=16, *, windows=None) -> GroupPlan:
    """Two layers of one KV head and 64 bytes per token: frames of 4,096 bytes for blocks of 16."""
    return plan_groups(block_sizes, num_layers=2, num_kv_heads=1, token_bytes=64, windows=windows)


def plan(*, available: int = 1 << 40, context: int = 2048, windows=None, **settings):
    config = EngineConfig(**settings)
    return plan_capacity(
        config,
        plan=layers(config.block_sizes, windows=windows),
        model_context=context,
        available_bytes=available,
    )


def test_automatic_pool_is_no_larger_than_the_rows_can_use():
    capacity = plan(max_num_seqs=4, context=160)
    assert capacity.num_blocks == 4 * 10
    assert capacity.num_tokens == 640
    assert capacity.context_len == 160


def test_automatic_pool_takes_half_of_what_is_free():
    capacity = plan(available=200_000)
    assert capacity.num_frames == 100
    assert capacity.num_bytes <= 100_000
    assert capacity.context_len == 99 * 16
    assert "the KV pool holds 1584 tokens" in capacity.context_reason


def test_given_memory_is_never_exceeded_and_all_used():
    capacity = plan(kv_memory_bytes=54_321, block_size=32)
    assert capacity.num_frames == 54
    assert capacity.num_blocks == 53
    assert capacity.num_tokens == 53 * 32
    assert "1,696 tokens in 53 blocks of 32" in str(capacity)


def test_max_context_limits_a_sequence():
    capacity = plan(max_context=100, max_num_seqs=2)
    assert capacity.context_len == 100
    assert capacity.num_blocks == 2 * 7


def test_too_small_memory_says_needed_had_and_options():
    with pytest.raises(InvalidConfig) as error:
        plan(kv_memory_bytes=1999)
    assert "kv_memory is 2.0 KiB (1999 bytes), but a single block takes 2000 bytes" in str(error.value)
    assert "Raise kv_memory" in str(error.value)
    assert plan(kv_memory_bytes=2000).num_blocks == 1
    with pytest.raises(InvalidConfig, match=r"one sequence of 100 tokens takes 8000 bytes: 8 blocks of 1000"):
        plan(kv_memory_bytes=7999, max_context=100)
    assert plan(kv_memory_bytes=8000, max_context=100).context_len == 100


def test_context_beyond_the_model_is_refused():
    with pytest.raises(InvalidConfig, match="max_context=4096: the model's limit is 2048"):
        plan(max_context=4096)
