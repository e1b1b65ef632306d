"""What the memory is used for: numbers at any time, from counters that every operation keeps up to date."""

from dataclasses import dataclass


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
