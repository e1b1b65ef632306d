"""From a look at the engine to one row per block: its state, its first owner, and how many hold it."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.engine.block_map import BlockMap, Holder, TableView
from octavo.paging.block import Block

FREE: Final = 0
HELD: Final = 1
SHARED: Final = 2
CACHED: Final = 3
PINNED: Final = 4
STATE_NAMES: Final = ("free", "held", "shared", "cached", "pinned", "lower_tier")
NOBODY: Final = -1

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """One entry per block id, the null block 0 included.

    Attributes:
        states: uint8, indices in STATE_NAMES.
        owners: int32, request id of the first owner by turn, or NOBODY.
        refs: uint16, tables that point there.
    """

    states: npt.NDArray[np.uint8]
    owners: npt.NDArray[np.int32]
    refs: npt.NDArray[np.uint16]

    @staticmethod
    def empty(num_blocks: int) -> "BlockRows":
        """All free."""
        return BlockRows(
            np.zeros(num_blocks, np.uint8),
            np.full(num_blocks, NOBODY, np.int32),
            np.zeros(num_blocks, np.uint16),
        )

    def copy(self) -> "BlockRows":
        """An independent one."""
        return BlockRows(self.states.copy(), self.owners.copy(), self.refs.copy())

    def differing(self, other: "BlockRows") -> Ids:
        """Ids of blocks that are not alike here and there, ascending."""
        differ = self.states != other.states
        differ |= self.owners != other.owners
        differ |= self.refs != other.refs
        return np.flatnonzero(differ).astype(np.int32)

    def take(self, ids: Any) -> "BlockRows":
        """The rows of some blocks."""
        return BlockRows(self.states[ids], self.owners[ids], self.refs[ids])

    def put(self, ids: Ids, rows: "BlockRows") -> None:
        """Replace the rows of some blocks."""
        self.states[ids], self.owners[ids], self.refs[ids] = rows.states, rows.owners, rows.refs


class HeldIds(NamedTuple):
    """Block ids of one sequence, one array per group, ``num_tables`` ids for each logical block."""

    tables: list[Ids]
    all: Ids


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A look with everything resolved to block ids; ``held`` in the order of ``blocks.holders``."""

    blocks: BlockMap
    rows: BlockRows
    held: list[HeldIds]

    def num_shared(self, index: int) -> int:
        """Blocks of one holder that others hold too."""
        return int(np.count_nonzero(self.rows.refs[self.held[index].all] > 1))


class _Known(NamedTuple):
    first: int
    blocks: list[Block]
    ids: Ids


class BlockResolver:
    """Turns looks into arrangements, and remembers the last one: a table that has grown is not read anew.

    Args:
        num_blocks: of the pool, the null block included.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._known: dict[tuple[int, int], _Known] = {}
        self._last_seen: list[Block | None] = [None] * num_blocks

    def named(self, block_id: int) -> Block | None:
        """The block with this id and a name, if it was ever seen."""
        block = self._last_seen[block_id]
        return None if block is None or block.node is None else block  # one that is gone has none

    def see(self, blocks: list[Block]) -> None:
        """Remember blocks that are in no table."""
        for block in blocks:
            for block_id in block.frames:
                self._last_seen[block_id] = block

    def arrange(self, blocks: BlockMap) -> Arrangement:
        """Resolve one look."""
        before, self._known = self._known, {}
        held = [self._ids_of(holder, before) for holder in blocks.holders]
        rows = BlockRows.empty(self.num_blocks)
        rows.states[1:] = CACHED  # until something else is known of it
        rows.states[blocks.free] = FREE
        if held:
            backwards = [ids.all for ids in reversed(held)]  # of several owners the first is written last
            ids = np.concatenate(backwards)
            owners = [holder.request.request_id for holder in reversed(blocks.holders)]
            rows.owners[ids] = np.repeat(owners, [len(own) for own in backwards])
            counts = np.bincount(ids, minlength=self.num_blocks)
            rows.refs[:] = np.minimum(counts, 0xFFFF)
            rows.states[counts == 1] = HELD
            rows.states[counts > 1] = SHARED
        for block in blocks.in_flight:
            rows.states[list(block.frames)] = PINNED
        return Arrangement(blocks, rows, held)

    def _ids_of(self, holder: Holder, before: dict[tuple[int, int], _Known]) -> HeldIds:
        tables = []
        for group, table in enumerate(holder.tables):
            key = holder.seq_id, group
            known = self._known[key] = self._extended(before.get(key), table)
            tables.append(known.ids)
        return HeldIds(tables, tables[0] if len(tables) == 1 else np.concatenate(tables))

    def _extended(self, known: _Known | None, table: TableView) -> _Known:
        blocks = table.blocks
        if known is None or known.first != table.first or blocks[: len(known.blocks)] != known.blocks:
            return _Known(table.first, blocks, self._read(blocks))
        if len(blocks) == len(known.blocks):
            return known
        tail = self._read(blocks[len(known.blocks) :])
        return _Known(table.first, blocks, np.concatenate([known.ids, tail]))

    def _read(self, blocks: list[Block]) -> Ids:
        last_seen = self._last_seen
        ids = []
        for block in blocks:
            for block_id in block.frames:
                ids.append(block_id)
                last_seen[block_id] = block
        return np.array(ids, np.int32)
