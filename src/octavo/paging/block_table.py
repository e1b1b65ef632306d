"""Block tables: for one sequence and one group, logical block -> block."""

from itertools import pairwise

from octavo.paging.block import Block, Node
from octavo.paging.groups import GroupSpec


class TableCounts:
    """Sums over the tables of one group, kept up to date by the tables themselves.

    Attributes:
        num_entries: blocks in tables, a shared block once per table.
        num_given_back: blocks before ``first``, which left the window.
        num_breaks: neighbours in a table whose frames are not neighbours in memory.
    """

    __slots__ = ("num_breaks", "num_entries", "num_given_back")

    def __init__(self) -> None:
        self.num_entries = 0
        self.num_given_back = 0
        self.num_breaks = 0


class BlockTable:
    """The blocks of one sequence in one group.

    Attributes:
        blocks: by logical index; None where the block was given back because it left the window.
        first: index of the first block still there.
        num_published: leading blocks that are complete and known to the prefix index.
        tip: their last one's node, the root, or None when publishing has ended (off, or a name collided).
    """

    __slots__ = ("blocks", "counts", "first", "num_published", "spec", "tip")

    def __init__(self, spec: GroupSpec, counts: TableCounts) -> None:
        self.spec = spec
        self.counts = counts
        self.blocks: list[Block | None] = []
        self.first = 0
        self.num_published = 0
        self.tip: Node | None = None

    def held(self) -> list[Block]:
        """The blocks still there, in order."""
        return [block for block in self.blocks[self.first :] if block is not None]

    def push(self, block: Block) -> None:
        """Add the next block."""
        blocks, counts = self.blocks, self.counts
        counts.num_entries += 1
        last = blocks[-1] if len(blocks) > self.first else None
        if last is not None and block.frames[0] != last.frames[-1] + 1:
            counts.num_breaks += 1
        blocks.append(block)

    def skip(self, count: int) -> None:
        """Begin an empty table with ``count`` blocks that the window no longer sees."""
        self.blocks.extend([None] * count)
        self.first += count
        self.counts.num_given_back += count

    def replace(self, index: int, block: Block) -> None:
        """Put ``block`` in the place of another."""
        blocks, counts = self.blocks, self.counts
        for left in (index - 1, index):
            if self.first <= left < len(blocks) - 1:
                counts.num_breaks -= _is_break(blocks[left], blocks[left + 1])
        blocks[index] = block
        for left in (index - 1, index):
            if self.first <= left < len(blocks) - 1:
                counts.num_breaks += _is_break(blocks[left], blocks[left + 1])

    def pop(self) -> Block | None:
        """Remove the last block; None if it had been given back."""
        block = self.blocks.pop()
        if block is None:
            self.first -= 1
            self.counts.num_given_back -= 1
            return None
        self.counts.num_entries -= 1
        if len(self.blocks) > self.first:
            self.counts.num_breaks -= _is_break(self.blocks[-1], block)
        return block

    def pop_first(self) -> Block:
        """Give back the first block still there."""
        blocks, first = self.blocks, self.first
        block = blocks[first]
        assert block is not None
        if len(blocks) > first + 1:
            self.counts.num_breaks -= _is_break(block, blocks[first + 1])
        blocks[first] = None
        self.first = first + 1
        self.counts.num_entries -= 1
        self.counts.num_given_back += 1
        return block

    def copy(self) -> "BlockTable":
        """A table of the same blocks; the caller retains them."""
        twin = BlockTable(self.spec, self.counts)
        twin.skip(self.first)
        for block in self.held():
            twin.push(block)
        twin.num_published = self.num_published
        twin.tip = self.tip
        return twin


def count_breaks(blocks: list[Block]) -> int:
    """Neighbours in ``blocks`` that are not neighbours in memory."""
    return sum(_is_break(left, right) for left, right in pairwise(blocks))


def _is_break(left: Block | None, right: Block | None) -> bool:
    """Whether ``right`` does not begin where ``left`` ends. Only called for blocks that are there."""
    assert left is not None
    assert right is not None
    return right.frames[0] != left.frames[-1] + 1
