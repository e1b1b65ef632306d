"""Forks share blocks, and whoever writes first copies."""

import random

from paging_case import P, advance, manager, start

from octavo.paging import GroupSpec


def test_a_fork_shares_every_block_and_the_first_writer_copies():
    kv = manager()
    parent = start(kv, range(6))
    child = kv.fork(parent)
    assert kv.block_tables(child) == kv.block_tables(parent)
    assert kv.stats().used_blocks == 2
    kv.append_tokens(child, [60])
    kv.append_tokens(parent, [61])
    plan = kv.plan_slots(child, 1)
    assert plan.num_blocks == 1
    grant = kv.commit(plan)
    assert grant.copies == [(kv.block_tables(parent)[0][1], kv.block_tables(child)[0][1])]
    second = kv.commit(kv.plan_slots(parent, 1))
    assert second.copies == [], "the parent is the only one left and writes in place"
    kv.complete_copies(grant.copies)
    kv.check_invariants()


def test_a_fork_at_a_block_boundary_copies_nothing():
    kv = manager()
    parent = start(kv, range(8))
    child = kv.fork(parent)
    kv.append_tokens(child, [1])
    assert advance(kv, child).copies == []


def test_a_child_copies_only_what_it_needs():
    """A shared block that begins where the child begins to write is replaced, not copied."""
    kv = manager()
    parent = kv.create_sequence(range(8))
    kv.commit(kv.plan_slots(parent, 8))
    kv.mark_computed(parent, 4)
    child = kv.fork(parent)
    grant = kv.commit(kv.plan_slots(child, 4))
    assert grant.copies == []
    assert kv.block_tables(child)[0][1] != kv.block_tables(parent)[0][1]
    kv.check_invariants()


def test_a_fork_of_a_block_of_several_frames_copies_them_all():
    kv = manager(groups=[GroupSpec(P, num_tables=3), GroupSpec(8)])
    parent = start(kv, range(6))
    child = kv.fork(parent)
    kv.append_tokens(child, [9])
    grant = advance(kv, child)
    old, new = kv.block_tables(parent), kv.block_tables(child)
    assert grant.copies == [*((old[t][1], new[t][1]) for t in range(3)), (old[3][0], new[3][0])]


def test_many_samples_of_one_prompt_hold_it_once():
    kv = manager(num_blocks=80)
    first = start(kv, range(41))
    samples = [first, *(kv.fork(first) for _ in range(49))]
    assert kv.stats().used_blocks == 11
    for i, seq in enumerate(samples):
        kv.append_tokens(seq, [100 + i])
        advance(kv, seq)
    assert kv.stats().used_blocks == 10 + 50
    for seq in samples:
        kv.release_sequence(seq)
    assert kv.num_free_blocks == 79


def test_both_ends_of_a_copy_stay_until_it_has_run():
    kv = manager(num_blocks=4)
    parent = start(kv, range(2))
    child = kv.fork(parent)
    kv.append_tokens(child, [7])
    grant = kv.commit(kv.plan_slots(child, 1))
    kv.release_sequence(parent)
    kv.release_sequence(child)
    assert kv.num_free_blocks == 1
    assert kv.stats().pinned_blocks == kv.stats().used_blocks == 2
    assert sorted(kv.census().in_flight) == [1, 2]
    kv.complete_copies(grant.copies)
    assert kv.num_free_blocks == 3
    kv.check_invariants()


def test_beams_beyond_a_window_return_every_block_once():
    kv = manager(num_blocks=40, groups=[GroupSpec(P, window=6)])
    beams = [start(kv, range(10))]
    beams += [kv.fork(beams[0]) for _ in range(3)]
    rng = random.Random(0)
    for step in range(30):
        for seq in beams:
            kv.append_tokens(seq, [step])
            advance(kv, seq)
        lost = beams.pop(rng.randrange(4))
        kv.release_sequence(lost)
        beams.append(kv.fork(rng.choice(beams)))
    for seq in beams:
        kv.release_sequence(seq)
    assert kv.num_free_blocks == 39
    kv.check_invariants()


def test_a_block_that_leaves_the_window_while_it_is_copied_has_one_owner_to_free_it():
    kv = manager(num_blocks=12, groups=[GroupSpec(P, window=4)])
    parent = start(kv, range(6))
    child = kv.fork(parent)
    kv.append_tokens(child, range(20))
    grant = kv.commit(kv.plan_slots(child, 6))
    kv.mark_computed(child, 12)
    kv.commit(kv.plan_slots(child, 1))
    kv.release_sequence(parent)
    kv.check_invariants()
    kv.complete_copies(grant.copies)
    kv.release_sequence(child)
    kv.check_invariants()
    assert kv.num_free_blocks == 11
