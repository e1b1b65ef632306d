"""Slots of a sequence's tokens: one at a time, in chunks, in whole steps, and after rolling back."""

import random

import pytest
from paging_case import P, advance, manager, start

from octavo.paging import GroupSpec

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
