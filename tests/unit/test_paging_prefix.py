"""Prefix hits: how long they are, whom they belong to, and why they end."""

import pytest
from paging_case import P, manager, start

from octavo.paging import GroupSpec, KVManager
from octavo.paging.hashing import NameChain, content_hash, pack_tokens, root_name


def cached(kv: KVManager, tokens, salt: str = "") -> int:
    return kv.match(tokens, salt=salt).num_tokens


@pytest.mark.parametrize(
    ("length", "hit"), [(1, 0), (P - 1, 0), (P, P - 1), (P + 1, P), (3 * P - 1, 2 * P), (3 * P, 3 * P - 1)]
)
def test_the_same_prompt_again_leaves_one_token_or_the_unfinished_block(length, hit):
    kv = manager()
    prompt = list(range(length))
    kv.release_sequence(start(kv, prompt))
    assert cached(kv, prompt) == hit
    again = start(kv, prompt)
    assert kv.num_computed(again) == length
    kv.release_sequence(again)
    assert kv.num_free_blocks == 31


def test_a_longer_prompt_hits_up_to_the_last_complete_block():
    kv = manager()
    start(kv, range(10))
    assert cached(kv, range(30)) == 8


def test_a_hit_shares_blocks_while_their_owner_lives():
    kv = manager()
    first = start(kv, range(13))
    second = kv.create_sequence([*range(12), 99, 98])
    assert kv.block_tables(second)[0] == kv.block_tables(first)[0][:3]
    assert kv.stats().shared_blocks == 3


def test_tokens_are_found_only_once_they_are_computed():
    kv = manager()
    seq = kv.create_sequence(range(9))
    kv.commit(kv.plan_slots(seq, 9))
    assert cached(kv, range(9)) == 0
    kv.mark_computed(seq, P - 1)
    assert cached(kv, range(9)) == 0
    kv.mark_computed(seq, P)
    assert cached(kv, range(9)) == P
    kv.mark_computed(seq, 9)
    assert cached(kv, range(9)) == 2 * P


def test_matching_changes_nothing():
    kv = manager(num_blocks=4)
    kv.release_sequence(start(kv, range(4)))
    kv.release_sequence(start(kv, range(20, 24)))
    before = kv.stats(), kv.census()
    for _ in range(3):
        match = kv.match(range(5))
        assert match.num_tokens == 4
        assert kv.can_admit(match, 1)
    assert (kv.stats(), kv.census()) == before
    kv.release_sequence(start(kv, range(40, 48)))
    assert cached(kv, range(5)) == 0, "matching must not have made the oldest block look recently used"


def test_a_match_that_went_stale_is_renewed():
    kv = manager(num_blocks=4)
    kv.release_sequence(start(kv, range(8)))
    match = kv.match(range(9))
    assert match.num_tokens == 8
    start(kv, range(50, 62))
    assert kv.renew(match).num_tokens == 0
    seq = kv.create_sequence(range(9), match=match)
    assert kv.num_computed(seq) == 0
    kv.check_invariants()


def test_a_match_of_something_else_is_refused():
    kv = manager()
    match = kv.match([1, 2, 3])
    with pytest.raises(ValueError, match="other tokens or another salt"):
        kv.create_sequence([1, 2, 4], match=match)
    with pytest.raises(ValueError, match="'x'"):
        kv.create_sequence([1, 2, 3], salt="x", match=match)


def test_one_match_may_start_several_sequences():
    kv = manager()
    start(kv, range(8))
    match = kv.match(range(10))
    first, second = (kv.create_sequence(range(10), match=match) for _ in range(2))
    kv.append_tokens(first, range(100, 110))
    kv.append_tokens(second, range(200, 210))
    for seq in (first, second):
        kv.commit(kv.plan_slots(seq, 12))
        kv.mark_computed(seq, 20)
    assert cached(kv, [*range(10), *range(100, 110), 0]) == 20
    assert cached(kv, [*range(10), *range(200, 210), 0]) == 20
    assert cached(kv, [*range(10), *range(100, 104), *range(204, 210)]) == 14


# Partial matches


def test_a_block_that_agrees_in_its_first_tokens_is_copied():
    kv = manager()
    first = start(kv, range(12))
    second = kv.create_sequence([0, 1, 2, 3, 4, 5, 90, 91, 92])
    assert kv.num_computed(second) == 6
    grant = kv.commit(kv.plan_slots(second, 3))
    (copy,) = grant.copies
    assert copy.source == kv.block_tables(first)[0][1]
    assert copy.destination == kv.block_tables(second)[0][1]
    assert [(t, i) for t, i, _ in grant.block_updates] == [(0, 0), (0, 1), (0, 2)]
    kv.check_invariants()


def test_of_several_blocks_the_one_that_agrees_longest_is_copied():
    kv = manager()
    for last in ([7, 7, 7, 7], [7, 7, 5, 5], [7, 1, 1, 1], [9, 9, 9, 9]):
        kv.release_sequence(start(kv, [0, 1, 2, 3, *last]))
    assert cached(kv, [0, 1, 2, 3, 7, 7, 5, 6, 6]) == 7
    assert cached(kv, [0, 1, 2, 3, 7, 7, 7, 0, 0]) == 7
    assert cached(kv, [0, 1, 2, 3, 7, 2, 2, 2, 2]) == 5
    assert cached(kv, [0, 1, 2, 3, 8, 8, 8, 8, 8]) == 4


def test_the_copied_block_itself_stays_cached():
    kv = manager()
    kv.release_sequence(start(kv, range(8)))
    kv.release_sequence(start(kv, [0, 1, 2, 3, 4, 5, 80, 81]))
    assert cached(kv, range(9)) == 8
    assert cached(kv, [0, 1, 2, 3, 4, 5, 80, 81, 9]) == 8


def test_in_a_full_pool_a_partly_matching_block_is_taken_over_instead_of_copied():
    """With a hit a sequence never needs more blocks than without."""
    kv = manager(num_blocks=2)
    kv.release_sequence(start(kv, range(4)))
    seq = kv.create_sequence([0, 1, 2, 9])
    assert kv.num_computed(seq) == 3
    plan = kv.plan_slots(seq, 1)
    assert (plan.fits, plan.num_blocks) == (True, 0)
    assert kv.commit(plan).copies == []
    kv.mark_computed(seq, 4)
    kv.release_sequence(seq)
    assert cached(kv, [0, 1, 2, 9, 9]) == 4
    assert cached(kv, [0, 1, 2, 3, 9]) == 3


# Tenants, models, collisions


def test_another_salt_shares_nothing():
    kv = manager()
    start(kv, range(12), salt="alice")
    assert cached(kv, range(12), salt="alice") == 11
    assert cached(kv, range(12), salt="bob") == 0
    assert cached(kv, range(12)) == 0


@pytest.mark.parametrize(
    ("one", "other"), [(("a", "bc"), ("ab", "c")), (("", "x"), ("x", "")), (("a\0b", ""), ("a", "b"))]
)
def test_namespace_and_salt_cannot_be_mistaken_for_each_other(one, other):
    assert root_name(*one) != root_name(*other)


def test_the_same_tokens_under_another_namespace_have_another_name():
    names = set()
    for namespace in ("llama/bf16", "llama/f32"):
        chain = NameChain(root_name(namespace, ""), 4, content_hash)
        names.add(chain.name(pack_tokens(range(8)), 8))
    assert len(names) == 2


def test_a_name_depends_on_all_tokens_before_it_and_on_nothing_after():
    def name(tokens, stop):
        return NameChain(bytes(16), 4, content_hash).name(pack_tokens(tokens), stop)

    assert name([1, 2, 3, 4, 5, 6, 7, 8], 8) != name([9, 2, 3, 4, 5, 6, 7, 8], 8)
    assert name([1, 2, 3, 4, 5, 6, 7, 8], 4) == name([1, 2, 3, 4, 9, 9, 9, 9], 4)


def test_names_are_computed_once_and_grow_with_the_sequence():
    calls = []

    def counting(parent: bytes, content: bytes) -> bytes:
        calls.append(content)
        return content_hash(parent, content)

    kv = manager(hash_function=counting)
    start(kv, [99] * 4)
    match = kv.match(range(16))
    start(kv, [98] * 4)
    calls.clear()
    assert kv.renew(match) is not match
    seq = kv.create_sequence(range(16), match=match)
    kv.commit(kv.plan_slots(seq, 16))
    kv.mark_computed(seq, 16)
    kv.append_tokens(seq, range(4))
    kv.commit(kv.plan_slots(seq, 4))
    kv.mark_computed(seq, 20)
    assert len(calls) == 4, "the first block was hashed by the first match, and none twice"


@pytest.mark.parametrize("other", [range(50, 62), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3], [9, *range(1, 12)]])
def test_colliding_names_never_serve_other_tokens(other):
    """With a constant hash every block has the same name; only equal tokens after equal tokens may match."""
    kv = manager(hash_function=lambda parent, content: b"same")
    start(kv, range(4))
    assert cached(kv, range(12)) == 4
    agreeing = next((i for i, (a, b) in enumerate(zip(other, range(4), strict=False)) if a != b), 4)
    assert cached(kv, other) == agreeing
    start(kv, other)
    kv.check_invariants()
    assert kv.stats().collisions == 1
    assert cached(kv, other, salt="x") == 0


# Eviction


def test_the_tail_of_an_old_prefix_is_evicted_before_its_head():
    kv = manager(num_blocks=6)
    kv.release_sequence(start(kv, range(20)))
    start(kv, range(100, 108))
    assert cached(kv, range(20)) == 12
    assert kv.stats().evictions == 2


def test_a_prefix_that_was_used_again_outlives_one_that_was_not():
    kv = manager(num_blocks=7)
    kv.release_sequence(start(kv, range(9)))
    kv.release_sequence(start(kv, range(50, 59)))
    kv.release_sequence(start(kv, range(9)))
    kv.release_sequence(start(kv, range(90, 99)))
    assert cached(kv, range(9)) == 8
    assert cached(kv, range(50, 59)) < 8


def test_resuming_finds_what_was_let_go():
    """Preemption is letting go of the blocks, resuming is looking them up again."""
    kv = manager()
    seq = start(kv, range(21))
    tables = kv.block_tables(seq)
    kv.release_sequence(seq)
    again = kv.create_sequence(range(21))
    assert kv.num_computed(again) == 20
    assert kv.block_tables(again)[0] == tables[0][:5]


# Two at once


def test_two_that_computed_the_same_block_end_up_sharing_the_first():
    kv = manager()
    first, second = (kv.create_sequence(range(10)) for _ in range(2))
    for seq in (first, second):
        kv.commit(kv.plan_slots(seq, 10))
    assert kv.stats().shared_blocks == 0
    kv.mark_computed(first, 10)
    mine = kv.block_tables(second)[0]
    kv.mark_computed(second, 10)
    assert kv.block_tables(second)[0] == [*kv.block_tables(first)[0][:2], mine[2]]
    assert kv.stats().used_blocks == 4
    kv.append_tokens(second, [7])
    updates = kv.commit(kv.plan_slots(second, 1)).block_updates
    assert updates == [(0, i, kv.block_tables(first)[0][i]) for i in range(2)]
    kv.check_invariants()


def test_eight_requests_with_one_prompt_hold_its_blocks_once():
    prompt = list(range(500))
    kv = manager(num_blocks=400, groups=[GroupSpec(16)])
    sequences = [start(kv, [*prompt, 1000 + i]) for i in range(8)]
    heads = [kv.block_tables(seq)[0][:31] for seq in sequences]
    assert all(head == heads[0] for head in heads)
    stats = kv.stats()
    assert stats.used_blocks == 31 + 8
    assert stats.shared_blocks == 31
    assert stats.sharing_ratio == pytest.approx(8 * 32 / 39)
    # 500 = 31 * 16 + 4: the four tokens behind the last complete block are nobody's to share.
    assert stats.hit_tokens == 7 * 496


def test_the_same_when_all_eight_start_at_once():
    kv = manager(num_blocks=400, groups=[GroupSpec(16)])
    sequences = [kv.create_sequence([*range(500), 1000 + i]) for i in range(8)]
    for seq in sequences:
        kv.commit(kv.plan_slots(seq, 501))
    assert kv.stats().used_blocks == 8 * 32
    for seq in sequences:
        kv.mark_computed(seq, 501)
    assert kv.stats().used_blocks == 31 + 8
    kv.check_invariants()


# Groups and windows


def test_a_hit_is_the_longest_on_which_all_groups_agree():
    kv = manager(groups=[GroupSpec(16), GroupSpec(4)])
    seq = kv.create_sequence(range(40))
    kv.commit(kv.plan_slots(seq, 40))
    kv.mark_computed(seq, 28)
    # The large blocks know 16 tokens, the small ones 28.
    match = kv.match(range(40))
    assert match.num_tokens == 16
    kv.mark_computed(seq, 40)
    assert cached(kv, range(40)) == 32
    assert cached(kv, [*range(22), *range(90, 99)]) == 22, "a large block is copied for its first six tokens"


def test_one_hash_per_smallest_block_names_the_blocks_of_all_groups():
    contents = []

    def recording(parent: bytes, content: bytes) -> bytes:
        contents.append(len(content) // 4)
        return content_hash(parent, content)

    kv = manager(groups=[GroupSpec(8), GroupSpec(4), GroupSpec(2)], hash_function=recording)
    start(kv, range(17))
    assert contents[1:] == [2] * 8


def test_block_sizes_that_do_not_divide_each_other_share_a_stream_too():
    kv = manager(num_blocks=90, groups=[GroupSpec(24), GroupSpec(16)])
    kv.release_sequence(start(kv, range(100)))
    assert cached(kv, range(100)) == 96


def test_a_window_gives_back_blocks_and_reports_them_as_null():
    kv = manager(num_blocks=6, groups=[GroupSpec(P, window=5)])
    seq = kv.create_sequence([0])
    kept = []
    for position in range(40):
        grant = kv.commit(kv.plan_slots(seq, 1))
        kv.mark_computed(seq, position + 1)
        kv.append_tokens(seq, [position])
        table = kv.block_tables(seq)[0]
        kept.append(sum(map(bool, table)))
        first_seen = max(0, position - 4) // P
        assert table[:first_seen] == [0] * first_seen
        assert all(table[first_seen:])
        assert all(table[i] == block_id for _, i, block_id in grant.block_updates)
        kv.check_invariants()
    assert max(kept) == 2, "five tokens never touch more than two blocks of four"


def test_a_window_still_hits_for_what_it_sees():
    """The blocks before the window are gone; the tokens in them are still confirmed."""
    kv = manager(num_blocks=5, groups=[GroupSpec(P, window=5)])
    seq = start(kv, range(9))
    for token in range(9, 24):
        kv.append_tokens(seq, [token])
        kv.commit(kv.plan_slots(seq, 1))
        kv.mark_computed(seq, token + 1)
    kv.release_sequence(seq)
    start(kv, range(500, 504))  # takes a block: everything but the last ones has been evicted by now
    match = kv.match(range(30))
    assert match.num_tokens == 24
    assert match.first == (5,)
    assert len(match.blocks[0]) == 1
    assert cached(kv, [99, *range(1, 30)]) == 0, "another first token, then the same: not the same content"
    again = kv.create_sequence(range(30), match=match)
    assert kv.block_tables(again)[0][:5] == [0] * 5
    kv.check_invariants()


def test_full_and_windowed_groups_agree():
    kv = manager(num_blocks=24, groups=[GroupSpec(P), GroupSpec(P, window=4)])
    seq = start(kv, range(8))
    for token in range(8, 40):
        kv.append_tokens(seq, [token])
        kv.commit(kv.plan_slots(seq, 1))
        kv.mark_computed(seq, token + 1)
    kv.release_sequence(seq)
    assert cached(kv, range(60)) == 40
    kv.release_sequence(start(kv, range(100, 120)))  # evicts the oldest: windowed blocks that left first
    assert cached(kv, range(60)) == 40
    assert kv.stats().evictions > 0


def test_a_hybrid_model_counts_its_hits():
    kv = manager(groups=[GroupSpec(P), GroupSpec(P, window=6)])
    for _ in range(3):
        kv.release_sequence(start(kv, range(21)))
    assert kv.stats().hit_tokens == 2 * 20
    assert kv.stats().hit_rate == pytest.approx(40 / 63)


# Explanations


def explain(kv: KVManager, tokens, salt: str = ""):
    return kv.explain(kv.create_sequence(tokens, salt=salt))


def test_explain_first_differing_token():
    kv = manager()
    start(kv, range(12))
    reason = explain(kv, [*range(6), 77, *range(7, 12)])
    assert (reason.num_cached, reason.reason, reason.position) == (6, "differs", 6)
    assert "first differs at token 6" in str(reason)
    at_a_boundary = explain(kv, [*range(8), 77, 78])
    assert (at_a_boundary.num_cached, at_a_boundary.reason, at_a_boundary.position) == (8, "differs", 8)


def test_explain_evicted():
    kv = manager(num_blocks=6)
    kv.release_sequence(start(kv, range(16)))
    kv.release_sequence(start(kv, range(90, 102)))
    reason = explain(kv, range(16))
    assert (reason.num_cached, reason.reason, reason.position) == (8, "evicted", 8)


def test_explain_evicted_under_a_window():
    kv = manager(num_blocks=5, groups=[GroupSpec(P, window=4)])
    seq = start(kv, range(9))
    for token in range(9, 33):
        kv.append_tokens(seq, [token])
        kv.commit(kv.plan_slots(seq, 1))
        kv.mark_computed(seq, token + 1)
    reason = explain(kv, range(12))
    assert (reason.num_cached, reason.reason, reason.position) == (0, "evicted", 0)


def test_explain_salt():
    kv = manager()
    start(kv, range(12), salt="alice")
    reason = explain(kv, range(12), salt="bob")
    assert (reason.num_cached, reason.reason) == (0, "salt")
    assert "another salt" in str(reason)


def test_explain_never_computed():
    kv = manager()
    assert explain(kv, range(12)).reason == "never computed"
    start(kv, range(8))
    reason = explain(kv, range(20))
    assert (reason.num_cached, reason.reason, reason.position) == (8, "never computed", 8)


def test_explain_complete_and_disabled():
    kv = manager()
    start(kv, range(12))
    assert explain(kv, range(12)).reason == "complete"
    off = manager(prefix_cache=False)
    start(off, range(12))
    assert explain(off, range(12)).reason == "disabled"
    assert off.stats().hit_tokens == 0
    assert off.stats().cached_blocks == 0
