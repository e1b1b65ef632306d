"""Sequences: slots, forks, copies, rolling back, running out, letting go, misuse, and the numbers."""

import random

import pytest

from octavo.core.errors import OutOfBlocks
from octavo.paging import BrokenInvariant, GroupSpec, KVManager

P = 4


def manager(num_blocks: int = 32, groups=None, **options) -> KVManager:
    return KVManager(num_blocks=num_blocks, groups=groups or [GroupSpec(P)], **options)


def advance(kv: KVManager, seq: int, count: int | None = None):
    """Compute the next tokens, or all that wait; returns the grant."""
    waiting = kv.seq_len(seq) - kv.num_computed(seq)
    grant = kv.commit(kv.plan_slots(seq, waiting if count is None else count))
    kv.complete_copies(grant.copies)
    kv.mark_computed(seq, kv.num_computed(seq) + (waiting if count is None else count))
    kv.check_invariants()
    return grant


def start(kv: KVManager, tokens, salt: str = "") -> int:
    seq = kv.create_sequence(tokens, salt=salt)
    advance(kv, seq)
    return seq


# Slots


def test_slots_are_block_times_size_plus_offset():
    kv = manager(groups=[GroupSpec(P), GroupSpec(8, num_tables=2)])
    seq = start(kv, range(10))
    tables = kv.block_tables(seq)
    for table, size in enumerate([4, 8, 8]):
        expected = [tables[table][p // size] * size + p % size for p in range(10)]
        assert kv.slots(seq, table, 0, 10) == expected
    everything = [(t, slot) for t in range(3) for slot in kv.slots(seq, t, 0, 10)]
    assert len(set(everything)) == 30
    assert len({b for t in tables for b in t}) == sum(map(len, tables)), "no frame serves two tables"


def test_a_block_is_added_when_its_first_token_comes_and_not_before():
    kv = manager()
    seq = start(kv, range(P - 1))
    for position in range(P - 1, 4 * P):
        kv.append_tokens(seq, [position])
        grant = advance(kv, seq)
        assert len(kv.block_tables(seq)[0]) == position // P + 1
        crossed = position % P == 0
        assert [(t, i) for t, i, _ in grant.block_updates] == ([(0, position // P)] if crossed else [])


def test_one_token_past_a_block_after_resuming():
    kv = manager(prefix_cache=False)
    kv.release_sequence(start(kv, range(P + 1)))
    seq = start(kv, range(P + 1))
    kv.append_tokens(seq, [1])
    assert advance(kv, seq).block_updates == []


def test_a_long_prompt_in_chunks_takes_the_same_blocks_as_at_once():
    for chunk in (1, P - 1, P, P + 1, 20):
        kv = manager()
        seq = kv.create_sequence(range(20))
        while kv.num_computed(seq) < 20:
            advance(kv, seq, min(chunk, 20 - kv.num_computed(seq)))
        assert kv.block_tables(seq) == [[1, 2, 3, 4, 5]]


def test_committing_again_before_computing_takes_nothing_more():
    kv = manager()
    seq = kv.create_sequence(range(10))
    kv.commit(kv.plan_slots(seq, 10))
    again = kv.commit(kv.plan_slots(seq, 10))
    assert (again.block_updates, again.copies) == ([], [])
    assert kv.stats().used_blocks == 3


def test_a_new_row_needs_only_the_updates():
    kv = manager()
    first = start(kv, range(10))
    second = kv.create_sequence(range(14))
    fork = kv.fork(first)
    kv.append_tokens(fork, [5])
    for seq, count in ((second, 6), (fork, 1)):
        grant = kv.commit(kv.plan_slots(seq, count))
        assert {i: b for _, i, b in grant.block_updates} == dict(enumerate(kv.block_tables(seq)[0]))


def test_a_sequence_that_changes_its_row_tells_its_whole_table_once_more():
    kv = manager()
    seq = start(kv, range(9))
    for _ in range(2):
        kv.append_tokens(seq, [1])
        kv.retell(seq)
        grant = kv.commit_step([(seq, 1)])
        assert {i: b for _, i, b in grant.block_updates[seq]} == dict(enumerate(kv.block_tables(seq)[0]))
        kv.mark_computed(seq, kv.seq_len(seq))
    kv.append_tokens(seq, [2])
    assert kv.commit_step([(seq, 1)]).block_updates.get(seq, []) == []


# Forks and copies


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


# Rolling back


def test_truncating_returns_the_blocks_behind_and_goes_on_in_place():
    kv = manager()
    seq = start(kv, range(6))
    kv.append_tokens(seq, range(100, 107))
    kv.commit(kv.plan_slots(seq, 7))
    assert kv.stats().used_blocks == 4
    kv.mark_computed(seq, 7)
    kv.truncate(seq, 7)
    assert (kv.seq_len(seq), kv.num_computed(seq), kv.stats().used_blocks) == (7, 7, 2)
    kv.append_tokens(seq, [5])
    grant = advance(kv, seq)
    assert grant.copies == []
    # The entries that were dropped and not used again are reported as empty.
    assert {i: b for _, i, b in grant.block_updates} == {2: 0, 3: 0}


def test_draft_tokens_may_be_marked_after_rolling_back():
    kv = manager()
    seq = start(kv, range(6))
    kv.append_tokens(seq, range(100, 107))
    kv.commit(kv.plan_slots(seq, 7))
    kv.truncate(seq, 8)
    kv.mark_computed(seq, 8)
    kv.check_invariants()
    assert kv.match([*range(6), 100, 101, 1]).num_tokens == 8


def test_writing_into_a_published_block_after_truncating_copies_it():
    kv = manager()
    seq = start(kv, range(8))
    kv.truncate(seq, 6)
    kv.append_tokens(seq, [66, 67])
    grant = advance(kv, seq)
    assert grant.copies == [(2, 3)]
    assert kv.match(range(9)).num_tokens == 8, "what was computed first is still cached"
    assert kv.match([*range(6), 66, 67, 0]).num_tokens == 8


def test_truncating_further_than_a_window_kept_is_refused():
    kv = manager(groups=[GroupSpec(P, window=4)])
    seq = start(kv, range(10))
    kv.append_tokens(seq, range(10))
    advance(kv, seq)
    before = kv.block_tables(seq)
    with pytest.raises(ValueError, match=f"sequence {seq}: cannot truncate to 3 tokens.*window of 4"):
        kv.truncate(seq, 3)
    assert (kv.block_tables(seq), kv.seq_len(seq)) == (before, 20)
    kv.truncate(seq, 12)
    kv.check_invariants()


# Running out


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


# Whole steps


def test_a_whole_step_does_what_single_calls_do():
    rng = random.Random(5)
    together, apart = manager(num_blocks=200), manager(num_blocks=200)
    prompts = [[rng.randrange(3) for _ in range(rng.randrange(1, 20))] for _ in range(12)]
    for kv in (together, apart):
        for prompt in prompts:
            advance(kv, kv.create_sequence(prompt))
    sequences = range(1, 13)
    for kv in (together, apart):
        for seq in sequences:
            kv.append_tokens(seq, [7])
    for step in range(20):
        whole = together.commit_step([(seq, 1) for seq in sequences])
        grants = {seq: apart.commit(apart.plan_slots(seq, 1)) for seq in sequences}
        assert whole.block_updates == {seq: g.block_updates for seq, g in grants.items() if g.block_updates}
        assert whole.copies == [copy for g in grants.values() for copy in g.copies]
        for kv in (together, apart):
            kv.complete_copies(whole.copies)
        together.advance_step([(seq, 1, step if seq % 2 else seq) for seq in sequences])
        for seq in sequences:
            apart.mark_computed(seq, apart.num_computed(seq) + 1)
            apart.append_tokens(seq, [step if seq % 2 else seq])
        for seq in sequences:
            assert together.block_tables(seq) == apart.block_tables(seq)
        assert together.stats() == apart.stats()
        together.check_invariants()


def test_a_step_may_add_no_token():
    kv = manager()
    seq = kv.create_sequence(range(10))
    kv.commit_step([(seq, 6)])
    kv.advance_step([(seq, 6, None)])
    assert (kv.seq_len(seq), kv.num_computed(seq)) == (10, 6)


def test_a_step_that_is_refused_in_the_middle_keeps_the_books():
    kv = manager()
    one, two = start(kv, range(5)), start(kv, range(50, 55))
    for seq in (one, two):
        kv.append_tokens(seq, [1])
    kv.commit_step([(one, 1), (two, 1)])
    with pytest.raises(ValueError, match="sequence 9 never existed"):
        kv.advance_step([(one, 1, 7), (9, 1, 7)])
    with pytest.raises(OverflowError):
        kv.advance_step([(two, 1, -1)])
    assert [kv.num_computed(seq) for seq in (one, two)] == [6, 6]
    assert [kv.seq_len(seq) for seq in (one, two)] == [7, 6]
    kv.check_invariants()


# Misuse


def test_a_released_sequence_is_gone():
    kv = manager()
    seq = start(kv, range(5))
    kv.release_sequence(seq)
    for call in (
        lambda: kv.release_sequence(seq),
        lambda: kv.append_tokens(seq, [1]),
        lambda: kv.plan_slots(seq, 1),
        lambda: kv.fork(seq),
        lambda: kv.truncate(seq, 0),
        lambda: kv.mark_computed(seq, 1),
        lambda: kv.block_tables(seq),
        lambda: kv.slots(seq, 0, 0, 1),
        lambda: kv.explain(seq),
        lambda: kv.commit_step([(seq, 1)]),
        lambda: kv.advance_step([(seq, 1, None)]),
    ):
        with pytest.raises(ValueError, match=f"sequence {seq} was released"):
            call()
    assert kv.num_free_blocks == 31
    with pytest.raises(ValueError, match="sequence 99 never existed"):
        kv.seq_len(99)


def test_an_old_plan_for_a_released_sequence_is_refused():
    kv = manager()
    seq = kv.create_sequence(range(5))
    plan = kv.plan_slots(seq, 5)
    kv.release_sequence(seq)
    with pytest.raises(ValueError, match=f"sequence {seq} was released"):
        kv.commit(plan)


@pytest.mark.parametrize("count", [-1, 0, 4])
def test_slots_only_for_waiting_tokens(count):
    kv = manager()
    seq = kv.create_sequence(range(3))
    with pytest.raises(ValueError, match=f"slots for {count} tokens asked, 3 are waiting"):
        kv.plan_slots(seq, count)
    with pytest.raises(ValueError, match=f"slots for {count} tokens asked, 3 are waiting"):
        kv.commit_step([(seq, count)])


@pytest.mark.parametrize("count", [-1, 2, 6, 100])
def test_computed_is_what_has_slots_and_never_less_than_before(count):
    kv = manager()
    seq = kv.create_sequence(range(9))
    kv.commit(kv.plan_slots(seq, 4))
    kv.mark_computed(seq, 3)
    with pytest.raises(ValueError, match=f"num_computed={count} must be from 3 .* to 4"):
        kv.mark_computed(seq, count)
    with pytest.raises(ValueError, match=f"num_computed={count} must be from 3 .* to 4"):
        kv.advance_step([(seq, count - 3, 5)])
    assert (kv.num_computed(seq), kv.seq_len(seq)) == (3, 9)
    kv.check_invariants()


def test_a_shared_block_of_a_partial_hit_cannot_be_marked_without_slots():
    kv = manager()
    start(kv, range(8))
    seq = kv.create_sequence([*range(6), 60, 61])
    assert kv.num_computed(seq) == 6
    with pytest.raises(ValueError, match="num_computed=7"):
        kv.mark_computed(seq, 7)


def test_other_nonsense_is_refused_with_its_value():
    kv = manager()
    seq = start(kv, range(6))
    with pytest.raises(ValueError, match="cannot truncate 6 tokens to 7"):
        kv.truncate(seq, 7)
    with pytest.raises(ValueError, match="cannot truncate 6 tokens to -1"):
        kv.truncate(seq, -1)
    with pytest.raises(ValueError, match="no copy from block 3 to block 4 is in flight"):
        kv.complete_copies([(3, 4)])
    with pytest.raises(ValueError, match="table 1: there are tables 0 to 0"):
        kv.slots(seq, 1, 0, 1)
    with pytest.raises(ValueError, match="positions 0 to 9 asked of table 0, which holds 0 to 8"):
        kv.slots(seq, 0, 0, 9)
    with pytest.raises(TypeError):
        kv.append_tokens(seq, [1, "two"])
    for token_id in (-1, 2**32):
        with pytest.raises(OverflowError):
            kv.append_tokens(seq, [1, token_id])
    assert kv.seq_len(seq) == 6
    with pytest.raises(ValueError, match="at least one group"):
        KVManager(num_blocks=4, groups=[])
    with pytest.raises(ValueError, match="num_tokens=-1"):
        kv.can_admit(kv.match([1]), -1)
    with pytest.raises(ValueError, match="window=0"):
        GroupSpec(4, window=0)
    with pytest.raises(ValueError, match="block_size=0"):
        GroupSpec(0)


def test_a_copy_is_completed_once():
    kv = manager()
    parent = start(kv, range(2))
    child = kv.fork(parent)
    kv.append_tokens(child, [1])
    grant = kv.commit(kv.plan_slots(child, 1))
    kv.complete_copies(grant.copies)
    with pytest.raises(ValueError, match="in flight"):
        kv.complete_copies(grant.copies)


def test_a_sequence_without_tokens_can_be_given_some():
    kv = manager()
    seq = kv.create_sequence([])
    assert kv.num_computed(seq) == 0
    with pytest.raises(ValueError, match="0 are waiting"):
        kv.plan_slots(seq, 1)
    kv.append_tokens(seq, [1])
    advance(kv, seq)


# The numbers


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


# Broken books are noticed


def broken(kv: KVManager) -> str:
    with pytest.raises(BrokenInvariant) as caught:
        kv.check_invariants()
    return str(caught.value)


def test_broken_books_name_the_culprit():
    kv = manager()
    seq = start(kv, range(10))
    block = kv._sequences[seq].tables[0].blocks[0]
    block.owners += 1
    assert f"tables of sequences [{seq}]" in broken(kv)
    assert "frames=(1,)" in broken(kv)


def test_a_lost_frame_is_noticed():
    kv = manager()
    kv.pool._free.remove(20)
    assert "blocks [20] are lost" in broken(kv)


def test_a_frame_in_two_places_is_noticed():
    kv = manager()
    seq = start(kv, range(3))
    kv.pool._free.append(1)
    assert "block 1 is both" in broken(kv)
    assert f"sequences [{seq}]" in broken(kv)


def test_a_name_for_other_tokens_is_noticed():
    kv = manager()
    seq = start(kv, range(8))
    kv._sequences[seq].tokens[5] = 77
    assert f"sequence {seq}: " in broken(kv)
    assert "holds other tokens" in broken(kv)


def test_a_counter_that_drifted_is_noticed():
    kv = manager()
    start(kv, range(8))
    kv.pool.num_shared += 1
    assert "num_shared is 1, but 0 are" in broken(kv)
    kv.pool.num_shared -= 1
    kv.total_computed -= 1
    assert "total_computed is 7, not 8" in broken(kv)
