"""The numbers that the manager tells of its pool."""

import random

import pytest
from paging_case import advance, manager, start

from octavo.paging import GroupSpec


def test_internal_waste_of_log_normal_lengths_is_under_four_percent():
    """Half a block per sequence is unfilled on average; reserving the longest for each wastes most of it."""
    rng = random.Random(7)
    lengths = [min(4096, max(16, round(rng.lognormvariate(5.5, 0.9)))) for _ in range(64)]
    kv = manager(num_blocks=4000, groups=[GroupSpec(16)])
    for i, length in enumerate(lengths):
        start(kv, [i * 5000 + t for t in range(length)])
    stats = kv.stats()
    slots = sum(-(-length // 16) * 16 for length in lengths)
    assert stats.unfilled_tokens == slots - sum(lengths)
    assert stats.waste == pytest.approx(stats.unfilled_tokens / slots)
    assert stats.waste < 0.04
    contiguous = 1 - sum(lengths) / (64 * max(lengths))
    assert contiguous > 0.75


def test_waste_is_measured_per_group():
    groups = [GroupSpec(64, num_tables=9), GroupSpec(16, num_tables=2), GroupSpec(8)]
    kv = manager(num_blocks=64, groups=groups)
    start(kv, range(70))
    stats = kv.stats()
    assert [g.unfilled_tokens for g in stats.groups] == [58, 10, 2]
    assert [g.table_entries for g in stats.groups] == [2, 5, 9]
    assert stats.used_blocks == 2 * 9 + 5 * 2 + 9
    assert stats.waste == pytest.approx((58 * 9 / 64 + 10 * 2 / 16 + 2 / 8) / 37)


def test_scatter_counts_breaks_in_tables():
    kv = manager(prefix_cache=False)
    one, two = kv.create_sequence(range(20)), kv.create_sequence(range(20))
    for _ in range(5):
        advance(kv, one, 4)
        advance(kv, two, 4)
    assert kv.stats().scatter == pytest.approx(8 / 10)
    kv.release_sequence(one)
    kv.release_sequence(two)
    kv = manager(prefix_cache=False)
    start(kv, range(20))
    assert kv.stats().scatter == 0


def test_an_idle_pool_has_all_numbers():
    stats = manager().stats()
    assert (stats.waste, stats.sharing_ratio, stats.scatter, stats.hit_rate) == (0, 1, 0, 0)
    assert (stats.total_blocks, stats.free_blocks) == (31, 31)


def test_the_census_names_every_owner():
    kv = manager(num_blocks=10)
    kv.release_sequence(start(kv, range(90, 94)))
    parent = start(kv, range(6))
    child = kv.fork(parent)
    census = kv.census()
    assert census.owners == {parent: [2, 3], child: [2, 3]}
    assert census.shared() == {2: [parent, child], 3: [parent, child]}
    assert census.cached == [1]
    assert sorted(census.free) == [4, 5, 6, 7, 8, 9]


def test_counters_count():
    kv = manager(num_blocks=6)
    kv.release_sequence(start(kv, range(8)))
    start(kv, [0, 1, 2, 3, 4, 50, 51])
    stats = kv.stats()
    assert (stats.query_tokens, stats.hit_tokens, stats.copies) == (15, 5, 1)
    start(kv, range(100, 112))
    assert kv.stats().evictions == 1
