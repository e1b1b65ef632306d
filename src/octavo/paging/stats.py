"""What the memory is used for: numbers at any time, from counters that every operation keeps up to date."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from octavo.paging.block import Block
from octavo.paging.block_pool import BlockPool
from octavo.paging.block_table import BlockTable, TableCounts
from octavo.paging.groups import GroupSpec


@dataclass(frozen=True, slots=True)
class GroupStats:
    """One group's tables, summed over all live sequences.

    Attributes:
        table_entries: blocks in tables, a shared block once per table.
        unfilled_tokens: slots in tables that no computed token fills yet. An unfinished block that forks
            share counts in each table.
        breaks: neighbours in a table that are not neighbours in memory.
    """

    block_size: int
    num_tables: int
    table_entries: int
    unfilled_tokens: int
    breaks: int

    @staticmethod
    def of(spec: GroupSpec, counts: TableCounts, total_computed: int) -> "GroupStats":
        """From a group's counters and the computed tokens of all live sequences."""
        slots = (counts.num_entries + counts.num_given_back) * spec.block_size
        return GroupStats(
            block_size=spec.block_size,
            num_tables=spec.num_tables,
            table_entries=counts.num_entries,
            unfilled_tokens=slots - total_computed,
            breaks=counts.num_breaks,
        )


@dataclass(frozen=True, slots=True)
class PagingStats:
    """The pool, counted in frames (block ids), and what sharing and caching bring.

    Attributes:
        total_blocks: usable frames; always ``free + cached + used``.
        free_blocks: hold nothing.
        cached_blocks: nobody holds them, but their contents can still be found.
        used_blocks: held by sequences or by copies in flight.
        shared_blocks: of the used, those in two or more tables.
        pinned_blocks: of the used, those that a copy in flight reads or writes.
        query_tokens, hit_tokens: known and cached tokens of all sequences created so far.
        evictions, copies: frames evicted and copied so far.
        collisions: contents left unnamed because another has their name.
    """

    total_blocks: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    shared_blocks: int
    pinned_blocks: int
    sequences: int
    query_tokens: int
    hit_tokens: int
    evictions: int
    copies: int
    collisions: int
    groups: tuple[GroupStats, ...]

    @property
    def table_frames(self) -> int:
        """Frames in tables, a shared one once per table."""
        return sum(g.table_entries * g.num_tables for g in self.groups)

    @property
    def unfilled_tokens(self) -> int:
        """Internal waste: slots in tables that no computed token fills yet."""
        return sum(g.unfilled_tokens for g in self.groups)

    @property
    def waste(self) -> float:
        """Internal waste as a fraction of the bytes in tables."""
        unfilled = sum(g.unfilled_tokens * g.num_tables / g.block_size for g in self.groups)
        return unfilled / self.table_frames if self.table_frames else 0.0

    @property
    def sharing_ratio(self) -> float:
        """Table entries per used frame: 1 when nothing is shared, 8 when eight sequences share everything."""
        return self.table_frames / self.used_blocks if self.used_blocks else 1.0

    @property
    def scatter(self) -> float:
        """Fraction of table entries whose frames do not follow those of the entry before."""
        entries = sum(g.table_entries for g in self.groups)
        return sum(g.breaks for g in self.groups) / entries if entries else 0.0

    @property
    def hit_rate(self) -> float:
        """Fraction of the known tokens of created sequences that came from the cache."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Census:
    """Where every block id of the pool is.

    Attributes:
        owners: per live sequence, the block ids in its tables; a shared one appears under each owner.
        in_flight: held by copies only.
        cached: held by nobody, but known by name; next to be evicted first.
        free: next to be handed out first.
    """

    owners: dict[int, list[int]]
    in_flight: list[int]
    cached: list[int]
    free: list[int]

    @staticmethod
    def take(
        pool: BlockPool,
        tables: Mapping[int, Sequence[BlockTable]],
        copy_ends: Collection[tuple[Block, Block]],
    ) -> "Census":
        """Look at every table and at the pool."""
        loose = dict.fromkeys(block for ends in copy_ends for block in ends if block.owners == 0)
        return Census(
            owners={
                seq_id: [frame for table in own for block in table.held() for frame in block.frames]
                for seq_id, own in tables.items()
            },
            in_flight=[frame for block in loose for frame in block.frames],
            cached=[frame for block in pool.cached_blocks() for frame in block.frames],
            free=pool.free_frames(),
        )

    def shared(self) -> dict[int, list[int]]:
        """Block ids in two or more sequences, with their owners."""
        holders: dict[int, list[int]] = {}
        for seq_id, block_ids in self.owners.items():
            for block_id in block_ids:
                holders.setdefault(block_id, []).append(seq_id)
        return {block_id: seq_ids for block_id, seq_ids in holders.items() if len(seq_ids) > 1}
