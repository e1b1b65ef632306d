"""A pool that is too small: nothing is taken by halves, and nothing is left behind."""

import random

import pytest
from paging_case import P, advance, manager, start

from octavo.core.errors import OutOfBlocks
from octavo.paging import GroupSpec


def test_a_plan_that_does_not_fit_leaves_no_trace():
    kv = manager(num_blocks=5)
    kv.release_sequence(start(kv, range(50, 58)))
    seq = kv.create_sequence(range(20))
    before = kv.stats(), kv.census(), kv.block_tables(seq)
    plan = kv.plan_slots(seq, 20)
    assert (plan.num_blocks, plan.fits) == (5, False)
    with pytest.raises(OutOfBlocks, match="5 needed, 2 free, 2 evictable"):
        kv.commit(plan)
    with pytest.raises(OutOfBlocks):
        kv.commit_step([(seq, 20)])
    assert (kv.stats(), kv.census(), kv.block_tables(seq)) == before
    kv.commit(kv.plan_slots(seq, 16))


def test_a_step_is_committed_whole_or_not_at_all():
    kv = manager(num_blocks=6)
    one, two = kv.create_sequence(range(12)), kv.create_sequence(range(50, 62))
    with pytest.raises(OutOfBlocks, match="6 needed, 5 free, 0 evictable"):
        kv.commit_step([(one, 12), (two, 12)])
    assert kv.stats().used_blocks == 0
    grant = kv.commit_step([(one, 12), (two, 8)])
    assert grant.block_updates == {one: [(0, i, i + 1) for i in range(3)], two: [(0, 0, 4), (0, 1, 5)]}


def test_a_plan_that_went_stale_is_carried_out_as_things_are():
    kv = manager(num_blocks=4)
    one, two = kv.create_sequence(range(8)), kv.create_sequence(range(50, 58))
    plans = kv.plan_slots(one, 8), kv.plan_slots(two, 8)
    assert all(plan.fits for plan in plans)
    kv.commit(plans[0])
    with pytest.raises(OutOfBlocks, match="2 needed, 1 free"):
        kv.commit(plans[1])
    kv.check_invariants()


def test_can_admit_counts_the_blocks_that_a_hit_takes_out_of_the_cache():
    kv = manager(num_blocks=5)
    kv.release_sequence(start(kv, range(12)))
    match = kv.match(range(17))
    assert match.num_tokens == 12
    assert kv.num_free_blocks == 4
    assert kv.can_admit(match, 4)
    assert not kv.can_admit(match, 5), "three of the four free blocks are the hit itself"


def test_can_admit_counts_the_copy_of_a_block_in_use_that_agrees_in_part():
    kv = manager(num_blocks=4)
    start(kv, range(8))
    prompt = [*range(6), 60, 61, 62]
    match = kv.match(prompt)
    assert match.num_tokens == 6
    assert kv.can_admit(match, 2)
    assert not kv.can_admit(match, 3), "one block for the copy, one for the ninth token, one is free"
    seq = kv.create_sequence(prompt, match=match)
    assert kv.plan_slots(seq, 2).fits
    assert not kv.plan_slots(seq, 3).fits


def test_blocks_that_leave_a_window_make_room_for_others_in_the_same_step():
    kv = manager(num_blocks=5, groups=[GroupSpec(P, window=5)])
    one, two = kv.create_sequence(range(40)), kv.create_sequence(range(50, 90))
    for _ in range(10):
        grant = kv.commit_step([(one, 4), (two, 4)])
        kv.advance_step([(one, 4, None), (two, 4, None)])
        assert len(grant.block_updates) == 2
        kv.check_invariants()
    assert [kv.block_tables(seq)[0][:8] for seq in (one, two)] == [[0] * 8] * 2
    assert kv.stats().used_blocks == 4


def test_blocks_that_leave_a_window_make_room_for_the_same_commit():
    kv = manager(num_blocks=3, groups=[GroupSpec(P, window=5)])
    seq = kv.create_sequence(range(40))
    for _ in range(10):
        advance(kv, seq, 4)
    assert kv.stats().used_blocks == 2
    assert kv.block_tables(seq)[0][:8] == [0] * 8


def test_random_requests_leave_nothing_behind():
    """Short requests, aborts in the middle, forks, errors: when idle, everything is free again."""
    rng = random.Random(1)
    kv = manager(num_blocks=30)
    live: list[int] = []
    for _ in range(3000):
        action = rng.random()
        if action < 0.3 and len(live) < 8:
            live.append(kv.create_sequence([rng.randrange(3) for _ in range(rng.randrange(1, 30))]))
        elif action < 0.4 and 0 < len(live) < 8:
            live.append(kv.fork(rng.choice(live)))
        elif action < 0.6 and live:
            kv.release_sequence(live.pop(rng.randrange(len(live))))
        elif live:
            seq = rng.choice(live)
            if kv.seq_len(seq) == kv.num_computed(seq):
                kv.append_tokens(seq, [rng.randrange(3)])
            plan = kv.plan_slots(seq, rng.randrange(1, kv.seq_len(seq) - kv.num_computed(seq) + 1))
            if plan.fits:
                kv.complete_copies(kv.commit(plan).copies)
                kv.mark_computed(seq, kv.num_computed(seq) + plan.num_tokens)
    for seq in live:
        kv.release_sequence(seq)
    kv.check_invariants()
    assert kv.num_free_blocks == 29
    assert kv.stats().sequences == 0
