"""The memory part of Octavo alone: paged KV memory with sharing, without a model and without any bytes."""

from octavo.core.errors import OutOfBlocks
from octavo.paging import GroupSpec, KVManager


def serve(kv: KVManager, seq: int, num_tokens: int) -> None:
    """What an engine does in a step: ask for slots, run the copies, write the KV, say so."""
    grant = kv.commit(kv.plan_slots(seq, num_tokens))
    for source, destination in grant.copies:
        print(f"  copy block {source} to block {destination} before sequence {seq} writes")
    kv.complete_copies(grant.copies)
    kv.mark_computed(seq, kv.num_computed(seq) + num_tokens)


def main() -> None:
    kv = KVManager(num_blocks=16, groups=[GroupSpec(block_size=4)])
    system = list(range(100, 110))  # ten tokens that every prompt begins with

    first = kv.create_sequence([*system, 1, 2, 3])
    serve(kv, first, kv.seq_len(first))
    print(f"first:  blocks {kv.block_tables(first)[0]}; {kv.explain(first)}")

    # The second prompt agrees in two and a half blocks: two are shared, the third is copied.
    second = kv.create_sequence([*system, 7, 8])
    print(f"second: blocks {kv.block_tables(second)[0]}; {kv.explain(second)}")
    serve(kv, second, kv.seq_len(second) - kv.num_computed(second))
    print(f"second: blocks {kv.block_tables(second)[0]}")

    # A fork shares everything, the unfinished block too, until one of the two writes.
    fork = kv.fork(first)
    kv.append_tokens(fork, [4])
    serve(kv, fork, 1)
    print(f"fork:   blocks {kv.block_tables(fork)[0]}; slot of its last token {kv.slots(fork, 0, 13, 14)}")

    stats = kv.stats()
    print(f"{stats.used_blocks} blocks hold {stats.table_frames} table entries, {stats.waste:.0%} unfilled")

    # What is let go stays cached until the memory is wanted; nothing is ever half taken.
    for seq in (first, second, fork):
        kv.release_sequence(seq)
    print(f"{kv.stats().cached_blocks} blocks cached, {kv.stats().free_blocks} free")
    long = kv.create_sequence(range(1000, 1061))
    try:
        kv.commit(kv.plan_slots(long, 61))
    except OutOfBlocks as error:
        print(f"61 tokens: {error}")
    serve(kv, long, 60)
    print(f"60 tokens: {kv.stats().evictions} cached blocks evicted, {kv.num_free_blocks} left")
    kv.check_invariants()


if __name__ == "__main__":
    main()
