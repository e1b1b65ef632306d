"""What sequences may still take: the numbers by which requests are admitted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.paging import GroupSpec, KVManager
from octavo.paging.groups import most_frames


def compute(kv: KVManager, seq: int, count: int) -> None:
    grant = kv.commit(kv.plan_slots(seq, count))
    kv.complete_copies(grant.copies)
    kv.mark_computed(seq, kv.num_computed(seq) + count)


def used(kv: KVManager) -> int:
    return kv.pool.num_blocks - 1 - kv.num_free_blocks


@pytest.mark.parametrize(
    ("size", "window", "lengths", "blocks"),
    [
        (4, None, (0, 1, 4, 5, 400), (0, 1, 1, 2, 100)),
        (4, 1, (0, 1, 4, 5, 400), (0, 1, 1, 1, 1)),
        (4, 2, (1, 4, 5, 400), (1, 1, 2, 2)),
        (4, 5, (4, 5, 8, 9, 400), (1, 2, 2, 2, 2)),
        (4, 6, (8, 9, 400), (2, 3, 3)),
    ],
)
def test_most_blocks(size, window, lengths, blocks):
    assert tuple(GroupSpec(size, window).most_blocks(n) for n in lengths) == blocks


@given(size=st.integers(1, 9), window=st.integers(1, 30), seq_len=st.integers(1, 90))
def test_most_blocks_is_what_a_sequence_touches(size, window, seq_len):
    most = max(p // size - max(0, p - window + 1) // size + 1 for p in range(seq_len))
    assert GroupSpec(size, window).most_blocks(seq_len) == most


def test_growth_of_one_sequence():
    kv = KVManager(num_blocks=40, groups=[GroupSpec(4, num_tables=2), GroupSpec(8)])
    tokens = list(range(30))
    match = kv.match(tokens)
    assert kv.growth_from(match, 30) == 8 * 2 + 4
    seq = kv.create_sequence(tokens, match=match)
    compute(kv, seq, 9)
    assert kv.growth(seq, 9) == 0
    assert kv.growth(seq, 12) == 0
    assert kv.growth(seq, 13) == 2
    assert kv.growth(seq, 30) == 5 * 2 + 2
    assert kv.growth(seq, 30, spare_blocks=1) == 6 * 2 + 3
    assert kv.growth_from(kv.match(tokens), 30) == 6 * 2 + 3  # two blocks and one are in use


def test_growth_counts_a_shared_block_that_will_be_copied():
    kv = KVManager(num_blocks=20, groups=[GroupSpec(4)])
    first = kv.create_sequence(range(8))
    compute(kv, first, 6)
    second = kv.fork(first)
    assert kv.growth(first, 8) == kv.growth(second, 8) == 1
    compute(kv, first, 2)
    assert kv.growth(second, 8) == 0


groups = st.lists(
    st.builds(
        GroupSpec,
        block_size=st.sampled_from([2, 4, 6]),
        window=st.one_of(st.none(), st.integers(1, 12)),
        num_tables=st.integers(1, 2),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=150)
@given(data=st.data(), groups=groups, fork=st.booleans())
def test_sequences_take_no_more_than_their_growth(data, groups, fork):
    """However they take turns, and whatever they share."""
    kv = KVManager(num_blocks=400, groups=groups)
    tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=30))
    final = 40
    live = [kv.create_sequence(tokens)]
    compute(kv, live[0], data.draw(st.integers(1, len(tokens))))
    if fork:
        live.append(kv.fork(live[0]))
    cut = data.draw(st.integers(0, len(tokens)))
    other = [*tokens[:cut], *data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=20))]
    match = kv.match(other)
    before = used(kv) + sum(kv.growth(seq, final) for seq in live)
    promised = before + kv.growth_from(match, final)
    assert promised <= used(kv) + most_frames(groups, final) * 3
    live.append(kv.create_sequence(other, match=match))
    assert used(kv) <= promised
    for seq in live:
        kv.append_tokens(seq, data.draw(st.lists(st.integers(0, 1), min_size=10, max_size=10)) * 4)
        kv.truncate(seq, final)
    while waiting := [seq for seq in live if kv.num_computed(seq) < final]:
        compute(kv, data.draw(st.sampled_from(waiting)), 1)
        assert used(kv) <= promised
    kv.check_invariants()
