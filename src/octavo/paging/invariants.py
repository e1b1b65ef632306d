"""Checks that the parts of the memory policy agree with each other, naming the culprit where they do not."""

from collections import Counter
from collections.abc import Collection, Sequence

from octavo.paging.block import Block, Node
from octavo.paging.block_pool import BlockPool
from octavo.paging.block_table import TableCounts, count_breaks
from octavo.paging.matching import PrefixMatcher
from octavo.paging.prefix_index import first_visible
from octavo.paging.sequence import Sequence as LiveSequence


class BrokenInvariant(AssertionError):
    """The books do not balance: a bug in Octavo, or memory shared against the rules."""


def check(
    pool: BlockPool,
    matcher: PrefixMatcher,
    sequences: Collection[LiveSequence],
    copy_ends: Collection[tuple[Block, Block]],
    counts: Sequence[TableCounts],
) -> None:
    """Check everything; the cost is proportional to the pool and the tables.

    Raises:
        BrokenInvariant: with the block, its owners and what is wrong.
    """
    owners: dict[Block, list[int]] = {}
    for seq in sequences:
        for table in seq.tables:
            for block in table.held():
                owners.setdefault(block, []).append(seq.seq_id)
    pins = Counter(block for ends in copy_ends for block in ends)
    cached = pool.cached_blocks()
    _check_frames(pool, owners, pins, cached)
    for block in {*owners, *pins}:
        holders = owners.get(block, [])
        if block.owners != len(holders) or block.pins != pins[block]:
            _fail(f"{block!r} is in the tables of sequences {holders} and has {pins[block]} pins")
    for block in cached:
        if block.owners or block.pins or block.node is None:
            _fail(f"{block!r} is in the eviction queue")
    _check_counters(pool, owners, pins, cached)
    _check_index(matcher, {*owners, *pins, *cached}, sequences)
    for seq in sequences:
        _check_sequence(seq)
    _check_table_counts(sequences, counts)


def _fail(message: str) -> None:
    raise BrokenInvariant(message)


def _check_frames(
    pool: BlockPool, owners: dict[Block, list[int]], pins: Counter[Block], cached: list[Block]
) -> None:
    """Every frame but 0 is in exactly one place."""
    place: dict[int, str] = {0: "the null block"}
    where: list[tuple[str, tuple[int, ...]]] = [
        (f"free list entry {i}", (frame,)) for i, frame in enumerate(pool.free_frames())
    ]
    where += [(f"cached {block!r}", block.frames) for block in cached]
    where += [
        (f"{block!r} of sequences {owners.get(block, [])}", block.frames)
        for block in dict.fromkeys([*owners, *pins])
    ]
    for what, frames in where:
        for frame in frames:
            if frame in place:
                _fail(f"block {frame} is both {place[frame]} and in {what}")
            place[frame] = what
    missing = [frame for frame in range(pool.num_blocks) if frame not in place]
    if missing or len(place) != pool.num_blocks:
        _fail(f"blocks {missing} are lost, or ids beyond {pool.num_blocks - 1} are in use")


def _check_counters(
    pool: BlockPool, owners: dict[Block, list[int]], pins: Counter[Block], cached: list[Block]
) -> None:
    expected = {
        "num_cached": sum(len(b.frames) for b in cached),
        "num_owned": sum(len(b.frames) for b in owners),
        "num_shared": sum(len(b.frames) for b, holders in owners.items() if len(holders) > 1),
        "num_pinned": sum(len(b.frames) for b in pins),
        "num_in_flight": sum(len(b.frames) for b in pins if b not in owners),
    }
    for name, value in expected.items():
        if getattr(pool, name) != value:
            _fail(f"{name} is {getattr(pool, name)}, but {value} are")


def _check_index(matcher: PrefixMatcher, blocks: set[Block], sequences: Collection[LiveSequence]) -> None:
    """Names and blocks are inverse; no node is there without need."""
    for block in blocks:
        if block.node is not None and block.node.block is not block:
            _fail(f"{block!r} has a name that leads to {block.node.block!r}")
    for group, index in enumerate(matcher.indexes):
        tips: Counter[Node] = Counter(tip for seq in sequences if (tip := seq.tables[group].tip) is not None)
        for node in index.nodes():
            if node.block is not None and (node.block.node is not node or node.block not in blocks):
                _fail(
                    f"name {node.name.hex()} of group {group} leads to {node.block!r}, which does not exist"
                )
            if node.num_tips != tips[node]:
                _fail(f"name {node.name.hex()} of group {group}: {node.num_tips} tips, not {tips[node]}")
            if node.block is None and not node.children and not node.num_tips:
                _fail(f"name {node.name.hex()} of group {group} is of no use")
            if any(child.parent is not node for child in node.children):
                _fail(f"name {node.name.hex()} of group {group} has another's child")
            contents = [child.tokens for child in node.children]
            if contents != sorted(set(contents)):
                _fail(f"name {node.name.hex()} of group {group}: children out of order")


def _check_sequence(seq: LiveSequence) -> None:
    """Computed tokens have blocks, and complete blocks say what the tokens say."""
    for table in seq.tables:
        size, blocks = table.spec.block_size, table.blocks
        if len(blocks) * size < seq.num_computed:
            _fail(
                f"sequence {seq.seq_id}: {seq.num_computed} tokens computed, {len(blocks)} blocks of {size}"
            )
        if first_visible(seq.num_computed, table.spec.window) < table.first * size:
            _fail(f"sequence {seq.seq_id}: gave back blocks its window of {table.spec.window} still sees")
        for index, block in enumerate(blocks):
            if (block is None) != (index < table.first):
                _fail(f"sequence {seq.seq_id}: block {index} is {block!r}, first is {table.first}")
            if block is not None and block.node is not None:
                start = index * size
                stop = min(start + size, seq.num_computed)
                own = seq.tokens[start:stop].tobytes()
                if not block.node.tokens.startswith(own):
                    _fail(
                        f"sequence {seq.seq_id}: {block!r} at index {index} holds other tokens than its own"
                    )
        if not seq.num_computed <= seq.granted:
            _fail(f"sequence {seq.seq_id}: {seq.num_computed} tokens computed, {seq.granted} granted")


def _check_table_counts(sequences: Collection[LiveSequence], counts: Sequence[TableCounts]) -> None:
    for group, count in enumerate(counts):
        tables = [seq.tables[group] for seq in sequences]
        expected = {
            "num_entries": sum(len(t.held()) for t in tables),
            "num_given_back": sum(t.first for t in tables),
            "num_breaks": sum(count_breaks(t.held()) for t in tables),
        }
        for name, value in expected.items():
            if getattr(count, name) != value:
                _fail(f"group {group}: {name} is {getattr(count, name)}, but {value} are")
