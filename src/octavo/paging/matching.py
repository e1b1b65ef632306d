"""One prompt against the indexes of all groups: the longest prefix they agree on, and why it ends there."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.paging.block import Block, Node
from octavo.paging.block_pool import BlockPool
from octavo.paging.block_table import BlockTable
from octavo.paging.explain import PrefixExplanation, Reason
from octavo.paging.groups import GroupSpec
from octavo.paging.hashing import HashFunction, NameChain, root_name
from octavo.paging.prefix_index import PrefixIndex, Walk
from octavo.paging.sequence import Sequence as LiveSequence


@dataclass(frozen=True, slots=True, eq=False)
class PrefixMatch:
    """A cached prefix. Holds no references: it is renewed if the index has changed when it is used.

    Attributes:
        num_tokens: tokens whose KV is cached, at most all but the last.
        blocks: per group, the blocks that hold them; the last may hold other tokens behind them.
        first: per group, logical index of the first of these blocks; a window may not need those before.
    """

    num_tokens: int
    blocks: tuple[list[Block], ...]
    first: tuple[int, ...]
    walks: tuple[Walk, ...]
    tokens: "array[int]"
    salt: str
    chain: NameChain
    version: int
    limit: int | None = None


class PrefixMatcher:
    """The indexes of all groups. With ``enabled`` false it finds nothing and names nothing.

    Attributes:
        query_tokens, hit_tokens: known and cached tokens of all sequences created so far.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        *,
        enabled: bool,
        namespace: str,
        unit: int,
        remembered: int,
        hash_function: HashFunction,
    ) -> None:
        self.enabled = enabled
        self.indexes = tuple(PrefixIndex(spec.block_size, spec.window, remembered) for spec in groups)
        self.query_tokens = 0
        self.hit_tokens = 0
        self._namespace = namespace
        self._unit = unit
        self._hash = hash_function

    def match(
        self, tokens: "array[int]", salt: str, chain: NameChain | None = None, *, limit: int | None = None
    ) -> PrefixMatch:
        """Look the first ``limit`` tokens up; ``chain`` keeps their names from an earlier time."""
        if chain is None:
            chain = NameChain(root_name(self._namespace, salt, self._hash), self._unit, self._hash)
        walks = tuple(index.walk(salt, chain, tokens) for index in self.indexes) if self.enabled else ()
        length = max(0, len(tokens) - 1) if walks else 0
        if limit is not None:
            length = min(length, limit)
        while length > (agreed := min((walk.longest(length) for walk in walks), default=0)):
            length = agreed
        first = []
        blocks = []
        for walk in walks:
            first.append(walk.first_needed(length))
            blocks.append(walk.blocks(length))
        if not walks:
            first, blocks = [0] * len(self.indexes), [[] for _ in self.indexes]
        return PrefixMatch(
            length, tuple(blocks), tuple(first), walks, tokens, salt, chain, self._version, limit
        )

    def renew(self, match: PrefixMatch) -> PrefixMatch:
        """``match`` itself, or what it would be now."""
        if match.version == self._version:
            return match
        return self.match(match.tokens, match.salt, match.chain, limit=match.limit)

    def open_tip(self, group: int, match: PrefixMatch) -> Node | None:
        """Let a new sequence stand on the last complete block of its match, or on its salt's root."""
        if not self.enabled:
            return None
        index, walk = self.indexes[group], match.walks[group]
        complete = match.num_tokens // walk.block_size
        tip = walk.path[complete - 1] if complete else index.root(match.salt, match.chain.root)
        index.move_tip(None, tip)
        return tip

    def share_tip(self, group: int, tip: Node | None) -> None:
        """One more sequence stands on ``tip``."""
        self.indexes[group].move_tip(None, tip)

    def close_tip(self, group: int, tip: Node | None) -> None:
        """A sequence that stood on ``tip`` has ended."""
        self.indexes[group].move_tip(tip, None)

    def rewind_tip(self, group: int, table: BlockTable, num_published: int) -> None:
        """Step back to the last of ``num_published`` blocks."""
        while table.num_published > num_published:
            table.num_published -= 1
            if table.tip is not None:
                self.indexes[group].move_tip(table.tip, table.tip.parent)
                table.tip = table.tip.parent

    def publish(self, seq: LiveSequence, pool: BlockPool) -> None:
        """Name the blocks that are complete now, or move the tables over to those that had the name first."""
        tokens = seq.tokens
        for group, table in enumerate(seq.tables):
            size = table.spec.block_size
            start = table.num_published * size
            while (stop := start + size) <= seq.num_computed and table.tip is not None:
                block = table.blocks[table.num_published]
                assert block is not None
                name = seq.chain.name(tokens, stop)
                table.tip = self.indexes[group].publish(table.tip, name, tokens[start:stop].tobytes(), block)
                if table.tip is None:
                    break
                known = table.tip.block
                if known is not None and known is not block:
                    pool.retain(known)
                    table.replace(table.num_published, known)
                    pool.release(block)
                    seq.changed[group, table.num_published] = None
                    seq.fast_end = seq.num_computed
                table.num_published += 1
                start = stop
        seq.update_mark_end()

    def forget(self, block: Block) -> None:
        """Take a block's name away."""
        self.indexes[block.group].forget(block)

    def forget_evicted(self, block: Block) -> None:
        """Take a block's name away and remember for a while that it was evicted."""
        self.indexes[block.group].forget(block, evicted=True)

    def explain(self, match: PrefixMatch) -> PrefixExplanation:
        """Why ``match``, which must be up to date, is not longer."""
        known = len(match.tokens)
        if not self.enabled:
            return PrefixExplanation(known, 0, "disabled", 0)
        if match.num_tokens >= known - 1:
            return PrefixExplanation(known, match.num_tokens, "complete", max(0, known - 1))
        if match.num_tokens == match.limit:
            return PrefixExplanation(known, match.num_tokens, "limited", match.num_tokens)
        group = min(range(len(match.walks)), key=lambda g: match.walks[g].agreed)
        reason, position = self._end(self.indexes[group], match.walks[group], match)
        return PrefixExplanation(known, match.num_tokens, reason, position)

    @property
    def _version(self) -> int:
        return sum(index.version for index in self.indexes)

    def _end(self, index: PrefixIndex, walk: Walk, match: PrefixMatch) -> tuple[Reason, int]:
        if walk.agreed > match.num_tokens:
            return "evicted", match.num_tokens  # a hole: the window needs a block that is gone
        size = walk.block_size
        complete = walk.agreed // size
        start, stop = complete * size, (complete + 1) * size
        if stop <= len(match.tokens):
            if index.was_evicted(match.chain.name(match.tokens, stop)):
                return "evicted", start
            if complete == 0 and index.known_to_other_salt(match.salt, match.tokens[:size].tobytes()):
                return "salt", 0
        if walk.agreed % size or walk.goes_on:
            return "differs", walk.agreed
        return "never computed", walk.agreed
