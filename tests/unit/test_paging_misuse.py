"""Calls that make no sense are refused, and broken books are noticed."""

import pytest
from paging_case import advance, manager, start

from octavo.paging import BrokenInvariant, GroupSpec, KVManager

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
