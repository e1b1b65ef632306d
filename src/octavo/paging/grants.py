"""What goes in and out of planning slots: plain values."""

from typing import NamedTuple


class BlockCopy(NamedTuple):
    """Copy frame ``source`` to frame ``destination`` before the step writes anything."""

    source: int
    destination: int


# (table, index, block_id): logical block ``index`` of table ``table`` is now frame ``block_id``; 0 is none.
TableUpdate = tuple[int, int, int]


class SlotPlan(NamedTuple):
    """Slots for the next tokens of one sequence.

    Attributes:
        num_blocks: frames that committing takes from the pool.
        fits: whether the pool has them, as things stand.
    """

    seq_id: int
    num_tokens: int
    num_blocks: int
    fits: bool


class SlotGrant(NamedTuple):
    """What committing a plan changed.

    Attributes:
        block_updates: every table entry of the sequence that changed since its last commit.
        copies: copies to run before the step writes; both ends stay pinned until ``complete_copies``.
    """

    block_updates: list[TableUpdate]
    copies: list[BlockCopy]


class StepGrant(NamedTuple):
    """What committing a whole step changed.

    Attributes:
        block_updates: as in ``SlotGrant``, for each sequence that has any.
        copies: the copies of all sequences, in order.
    """

    block_updates: dict[int, list[TableUpdate]]
    copies: list[BlockCopy]
