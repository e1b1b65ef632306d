import random

import pytest

from octavo.core.errors import OutOfBlocks
from octavo.paging.block import Block, Node
from octavo.paging.block_pool import BlockPool


def name(block: Block) -> None:
    """Make the pool believe that the block can be found."""
    block.node = Node(b"name", None, b"")


def frames(pool: BlockPool, count: int) -> list[Block]:
    return [pool.allocate(0, 1) for _ in range(count)]


def test_fresh_pool_hands_out_neighbours_and_never_the_null_block():
    pool = BlockPool(5)
    assert [block.frames for block in frames(pool, 4)] == [(1,), (2,), (3,), (4,)]
    assert pool.num_free == pool.num_available == 0


def test_a_block_of_several_frames_is_given_and_taken_as_one():
    pool = BlockPool(8)
    block = pool.allocate(0, 3)
    assert block.frames == (1, 2, 3)
    assert (pool.num_free, pool.num_owned) == (4, 3)
    pool.release(block)
    assert pool.free_frames() == [1, 2, 3, 4, 5, 6, 7]


def test_unnamed_before_named_and_named_least_recently_used_first():
    pool = BlockPool(5)
    a, b, c, d = frames(pool, 4)
    for block in (a, b, c):
        name(block)
    for block in (b, d, a, c):
        pool.release(block)
    assert [block.frames for block in pool.cached_blocks()] == [b.frames, a.frames, c.frames]
    assert [block.frames for block in frames(pool, 4)] == [d.frames, b.frames, a.frames, c.frames]
    assert pool.num_evictions == 3


def test_retaining_a_cached_block_saves_it_from_eviction():
    evicted: list[Block] = []
    pool = BlockPool(4, evicted.append)
    a, b, c = frames(pool, 3)
    for block in (a, b, c):
        name(block)
        pool.release(block)
    pool.retain(a)
    pool.allocate(0, 2)
    assert evicted == [b, c]
    with pytest.raises(OutOfBlocks):
        pool.allocate(0, 1)
    assert a.owners == 1


def test_out_of_blocks_says_the_numbers_and_changes_nothing():
    evicted: list[Block] = []
    pool = BlockPool(6, evicted.append)
    held, cached = frames(pool, 2)
    name(cached)
    pool.release(cached)
    with pytest.raises(OutOfBlocks, match="5 needed, 3 free, 1 evictable") as caught:
        pool.allocate(0, 5)
    assert (caught.value.needed, caught.value.free, caught.value.evictable) == (5, 3, 1)
    assert not evicted
    assert pool.cached_blocks() == [cached]
    assert held.owners == 1


def test_double_release_is_refused_and_names_the_block():
    pool = BlockPool(4)
    (block,) = frames(pool, 1)
    pool.release(block)
    with pytest.raises(ValueError, match=r"frames=\(1,\).* released, but nobody holds it"):
        pool.release(block)
    assert pool.num_free == 3


def test_a_gone_block_cannot_be_retained():
    pool = BlockPool(4)
    (block,) = frames(pool, 1)
    pool.release(block)
    with pytest.raises(ValueError, match=r"frames=\(1,\).* is neither held nor cached"):
        pool.retain(block)


def test_pinned_frames_are_not_reused_until_the_last_pin_is_gone():
    pool = BlockPool(3)
    block, other = frames(pool, 2)
    pool.pin(block)
    pool.pin(block)
    pool.release(block)
    assert (pool.num_available, pool.num_in_flight, pool.num_pinned) == (0, 1, 1)
    pool.unpin(block)
    assert pool.num_available == 0
    pool.unpin(block)
    assert (pool.num_available, pool.num_in_flight, pool.num_pinned) == (1, 0, 0)
    with pytest.raises(ValueError, match="has no pin"):
        pool.unpin(block)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.pin(block)
    assert other.owners == 1


def test_a_pool_needs_a_block_beside_the_null_block():
    with pytest.raises(ValueError, match="num_blocks=1"):
        BlockPool(1)


def test_random_use_agrees_with_a_list_that_is_searched():
    """The ring queue against a plain list, and the counters against counting."""
    rng = random.Random(3)
    pool = BlockPool(30)
    held: list[Block] = []
    cached: list[Block] = []
    for _ in range(5000):
        action = rng.random()
        if action < 0.4:
            size = rng.choice([1, 1, 2, 3])
            if size <= pool.num_available:
                block = pool.allocate(0, size)
                held.append(block)
                reused = {*pool.free_frames(), *block.frames}
                while cached and cached[0].frames[0] in reused:
                    cached.pop(0)
        elif action < 0.75 and held:
            block = held.pop(rng.randrange(len(held)))
            if rng.random() < 0.5 and block.node is None:
                name(block)
            pool.release(block)
            if block.owners == 0 and block.node is not None:
                cached.append(block)
        elif action < 0.9 and cached:
            block = cached.pop(rng.randrange(len(cached)))
            pool.retain(block)
            held.append(block)
        elif held:
            block = rng.choice(held)
            pool.retain(block)
            held.append(block)
        assert pool.cached_blocks() == cached
        distinct = set(held)
        assert pool.num_owned == sum(len(b.frames) for b in distinct)
        assert pool.num_shared == sum(len(b.frames) for b in distinct if held.count(b) > 1)
        everywhere = [f for b in [*distinct, *cached] for f in b.frames] + pool.free_frames()
        assert sorted(everywhere) == list(range(1, 30))
