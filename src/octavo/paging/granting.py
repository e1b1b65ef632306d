"""Who may write where. A block is written only by its sole owner, and only while it has no name.

Any other writer first gets a block of its own: a copy, if the block holds tokens it still needs. Of a named
block with no other owner it may also take the place, name and all, when the pool has no frame for a copy.
Copies run before the step writes anything; until they are reported complete, both ends are pinned.
"""

from collections.abc import Iterable, Sequence

from octavo.paging.block import Block
from octavo.paging.block_pool import BlockPool
from octavo.paging.grants import BlockCopy, TableUpdate
from octavo.paging.groups import GroupSpec
from octavo.paging.matching import PrefixMatcher
from octavo.paging.prefix_index import first_visible
from octavo.paging.sequence import Sequence as LiveSequence


class SlotGranter:
    """Makes slots writable.

    Attributes:
        in_flight: copies not yet complete, and the blocks they pin.
        num_copies: frames copied so far.
    """

    def __init__(self, groups: Sequence[GroupSpec], pool: BlockPool, matcher: PrefixMatcher) -> None:
        self._pool = pool
        self._matcher = matcher
        self._first_tables = [sum(g.num_tables for g in groups[:i]) for i in range(len(groups))]
        self._any_window = any(g.window is not None for g in groups)
        self.in_flight: dict[BlockCopy, tuple[Block, Block]] = {}
        self.num_copies = 0

    def needs(self, seq: LiveSequence, num_tokens: int) -> tuple[int, int, int]:
        """What the next tokens take. Changes nothing.

        Returns:
            Frames needed; frames that leaving the window frees first; frames that taking over would save.
        """
        start = seq.num_computed
        stop = start + num_tokens
        needed = given_back = saved = 0
        for table in seq.tables:
            spec, blocks = table.spec, table.blocks
            size, count = spec.block_size, len(blocks)
            end = (stop - 1) // size + 1
            if end > count:
                needed += (end - count) * spec.num_tables
            if start < count * size:
                for block in blocks[start // size : end]:
                    assert block is not None
                    if block.owners > 1 or block.node is not None:
                        needed += spec.num_tables
                        if block.owners == 1:
                            saved += spec.num_tables
            if spec.window is not None:
                first_kept = first_visible(start, spec.window) // size
                for block in blocks[table.first : first_kept]:
                    if block is not None and block.owners == 1 and not block.pins:
                        given_back += spec.num_tables
        return needed, given_back, saved

    def leave_window(self, seq: LiveSequence) -> None:
        """Give back the blocks that no token from here on sees."""
        if not self._any_window:
            return
        for group, table in enumerate(seq.tables):
            first_kept = first_visible(seq.num_computed, table.spec.window) // table.spec.block_size
            while table.first < first_kept:
                seq.changed[group, table.first] = None
                self._pool.release(table.pop_first())

    def grant(
        self, seq: LiveSequence, num_tokens: int, copies: list[BlockCopy], *, take_over: bool = False
    ) -> None:
        """Make the next tokens writable; the caller knows that the pool has what this needs.

        Args:
            copies: takes the copies to run first.
            take_over: write to named blocks without other owners instead of copying them.
        """
        start = seq.num_computed
        stop = start + num_tokens
        pool, changed = self._pool, seq.changed
        granted = fast_end = 1 << 62
        for group, table in enumerate(seq.tables):
            spec, blocks = table.spec, table.blocks
            size, count = spec.block_size, len(blocks)
            end = (stop - 1) // size + 1
            if start < count * size:
                for index, block in enumerate(blocks[start // size : end], start // size):
                    assert block is not None
                    if block.owners == 1 and block.node is None:
                        continue
                    if take_over and block.owners == 1:
                        self._matcher.forget(block)
                        continue
                    fresh = pool.allocate(group, spec.num_tables)
                    if start > index * size:
                        self._copy(block, fresh, copies)
                    table.replace(index, fresh)
                    pool.release(block)
                    changed[group, index] = None
            for index in range(count, end):
                changed[group, index] = None
                table.push(pool.allocate(group, spec.num_tables))
            granted = min(granted, end * size)
            if spec.window is not None:
                fast_end = min(fast_end, (table.first + 1) * size + spec.window - 1)
        seq.granted = granted
        seq.fast_end = granted if granted < fast_end else fast_end
        seq.update_mark_end()

    def take_updates(self, seq: LiveSequence) -> list[TableUpdate]:
        """All table entries that changed since the last time."""
        updates: list[TableUpdate] = []
        for group, index in seq.changed:
            blocks = seq.tables[group].blocks
            block = blocks[index] if index < len(blocks) else None
            frames = block.frames if block else (0,) * seq.tables[group].spec.num_tables
            table = self._first_tables[group]
            for frame in frames:
                updates.append((table, index, frame))
                table += 1
        seq.changed.clear()
        return updates

    def complete_copies(self, copies: Iterable[tuple[int, int]]) -> None:
        """These copies have run: unpin both ends."""
        for source, destination in copies:
            ends = self.in_flight.pop(BlockCopy(source, destination), None)
            if ends is None:
                raise ValueError(f"no copy from block {source} to block {destination} is in flight")
            for block in ends:
                self._pool.unpin(block)

    def _copy(self, source: Block, destination: Block, copies: list[BlockCopy]) -> None:
        for pair in map(BlockCopy, source.frames, destination.frames):
            self._pool.pin(source)
            self._pool.pin(destination)
            self.in_flight[pair] = source, destination
            copies.append(pair)
        self.num_copies += len(source.frames)
