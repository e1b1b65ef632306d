"""A manager of small blocks, and sequences that are computed at once."""

from octavo.paging import GroupSpec, KVManager

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
