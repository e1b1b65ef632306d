"""The memory policy as one object: who may write where, who shares what, what is evicted. Ids only.

A sequence is known tokens and, of those, computed ones. ``plan_slots`` says what it takes to write the next
ones, ``commit`` does it, ``mark_computed`` says they are written. Only then do complete blocks become visible
to others, by name. A block is written only by a sole owner and only while it has no name; any other writer
first gets a copy of its own.

Of two sequences that computed the same block at the same time, the first keeps it. The second's table moves
over to that block in ``mark_computed``, after the step that wrote it; the change is among the updates of its
next commit.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import repeat
from math import gcd

from octavo.paging import invariants
from octavo.paging.block import Block
from octavo.paging.block_pool import BlockPool
from octavo.paging.block_table import BlockTable, TableCounts
from octavo.paging.explain import PrefixExplanation
from octavo.paging.granting import SlotGranter
from octavo.paging.grants import BlockCopy, SlotGrant, SlotPlan, StepGrant
from octavo.paging.groups import GroupSpec, most_frames
from octavo.paging.hashing import HashFunction, content_hash, pack_tokens
from octavo.paging.matching import PrefixMatch, PrefixMatcher
from octavo.paging.prefix_index import first_visible
from octavo.paging.sequence import Sequence
from octavo.paging.stats import Census, GroupStats, PagingStats


class KVManager:
    """Blocks for sequences, out of one pool.

    Args:
        num_blocks: frames in the pool, the null block included; ids 1 .. num_blocks - 1 are handed out.
        groups: the groups of layers. Block tables are numbered through them in order.
        prefix_cache: let sequences find blocks by content.
        namespace: what else decides the bytes of a block: model, KV dtype, layout.
        hash_function: names contents; another one only for tests.

    Raises:
        ValueError: from any method, for a sequence, block or number that makes no sense; names it.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        groups: Seq[GroupSpec],
        prefix_cache: bool = True,
        namespace: str = "",
        hash_function: HashFunction = content_hash,
    ) -> None:
        if not groups:
            raise ValueError("groups=[]: at least one group of layers is needed")
        self.groups = tuple(groups)
        self.matcher = PrefixMatcher(
            self.groups,
            enabled=prefix_cache,
            namespace=namespace,
            unit=gcd(*(spec.block_size for spec in self.groups)),
            remembered=num_blocks,
            hash_function=hash_function,
        )
        self.pool = BlockPool(num_blocks, self.matcher.forget_evicted)
        self.granter = SlotGranter(self.groups, self.pool, self.matcher)
        self._table_groups = [(g, c) for g, spec in enumerate(self.groups) for c in range(spec.num_tables)]
        self.counts = tuple(TableCounts() for _ in self.groups)
        self.total_computed = 0  # over live sequences
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 1

    # Sequences

    def match(self, token_ids: Seq[int], *, salt: str = "", limit: int | None = None) -> PrefixMatch:
        """The longest prefix whose KV is cached, at most all but the last token. Changes nothing.

        Args:
            limit: tokens to look for at most, for those who want to compute the rest anyway.
        """
        return self.matcher.match(pack_tokens(token_ids), salt, limit=limit)

    def renew(self, match: PrefixMatch) -> PrefixMatch:
        """What ``match`` would say now of the same tokens; hashes nothing anew. Changes nothing."""
        return self.matcher.renew(match)

    def can_admit(self, match: PrefixMatch, num_tokens: int) -> bool:
        """Whether a sequence made from ``match`` could get slots for its next ``num_tokens`` tokens now."""
        if num_tokens < 0:
            raise ValueError(f"num_tokens={num_tokens}: must be at least 0")
        match = self.matcher.renew(match)
        start = match.num_tokens
        needed = 0
        for spec, blocks in zip(self.groups, match.blocks, strict=True):
            size = spec.block_size
            count = -(-(start + num_tokens) // size) - -(-start // size)
            idle = sum(block.owners + block.pins == 0 for block in blocks)
            if start % size and num_tokens and blocks[-1].owners:
                count += 1  # a block in use that agrees in part is copied; one that nobody uses is taken over
            needed += (count + idle) * spec.num_tables
        return needed <= self.pool.num_available

    def growth_from(self, match: PrefixMatch, seq_len: int) -> int:
        """Frames that a sequence made from ``match`` takes at most on its way to ``seq_len`` tokens.

        Shared blocks are counted, although they take nothing yet, where they do not stay shared: the last one
        if it agrees in part, and all in groups with a window, which others may leave.
        """
        match = self.matcher.renew(match)
        total = most_frames(self.groups, seq_len)
        for spec, blocks in zip(self.groups, match.blocks, strict=True):
            if spec.window is None:
                whole = blocks[: match.num_tokens // spec.block_size]
                total -= sum(block.owners + block.pins > 0 for block in whole) * spec.num_tables
        return total

    def growth(self, seq_id: int, seq_len: int, *, spare_blocks: int = 0) -> int:
        """Frames that a sequence takes at most, beside those it holds, on its way to ``seq_len`` tokens.

        Args:
            spare_blocks: logical blocks in each group that may be needed beyond that length.
        """
        seq = self._sequence(seq_id)
        total = 0
        for table in seq.tables:
            spec = table.spec
            if spec.window is None:
                held = len(table.blocks)
                writes_to = seq.num_computed // spec.block_size
                held -= any(block is not None and block.owners > 1 for block in table.blocks[writes_to:])
            else:
                held = sum(block.owners == 1 for block in table.held())
            most = spec.most_blocks(seq_len + spare_blocks * spec.block_size)
            total += max(0, most - held) * spec.num_tables
        return total

    def create_sequence(
        self, token_ids: Seq[int], *, salt: str = "", match: PrefixMatch | None = None
    ) -> int:
        """A new sequence that holds the blocks of its cached prefix and nothing else.

        Args:
            match: what ``match`` said of the same tokens and salt, to save looking again.
        """
        tokens = pack_tokens(token_ids)
        if match is None:
            match = self.matcher.match(tokens, salt)
        elif match.tokens != tokens or match.salt != salt:
            raise ValueError(f"match of other tokens or another salt than those of this sequence ({salt!r})")
        else:
            match = self.matcher.renew(match)
        explanation = self.matcher.explain(match)
        tables = [BlockTable(spec, counts) for spec, counts in zip(self.groups, self.counts, strict=True)]
        seq = Sequence(
            seq_id=self._next_id,
            tokens=tokens,
            salt=salt,
            chain=match.chain.copy(),
            tables=tables,
            explanation=explanation,
        )
        self._next_id += 1
        self._sequences[seq.seq_id] = seq
        start = match.num_tokens
        for group, table in enumerate(tables):
            table.skip(match.first[group])
            for block in match.blocks[group]:
                self.pool.retain(block)
                seq.changed[group, len(table.blocks)] = None
                table.push(block)
            table.num_published = start // table.spec.block_size
            table.tip = self.matcher.open_tip(group, match)
        seq.start_at(start)
        self.total_computed += start
        self.matcher.query_tokens += len(tokens)
        self.matcher.hit_tokens += start
        return seq.seq_id

    def append_tokens(self, seq_id: int, token_ids: Iterable[int]) -> None:
        """Add known tokens to the end."""
        self._sequence(seq_id).tokens.extend(pack_tokens(token_ids))

    def fork(self, seq_id: int) -> int:
        """A second sequence with the same tokens and the same blocks, the unfinished one included.

        Nothing is granted to it; whichever of the two writes to a shared block first gets a copy.
        """
        seq = self._sequence(seq_id)
        twin = seq.fork(self._next_id)
        self._next_id += 1
        self._sequences[twin.seq_id] = twin
        for group, table in enumerate(twin.tables):
            self.matcher.share_tip(group, table.tip)
            for block in table.held():
                self.pool.retain(block)
        self.total_computed += twin.num_computed
        return twin.seq_id

    def truncate(self, seq_id: int, num_tokens: int) -> None:
        """Forget all but the first ``num_tokens`` tokens and let go of the blocks behind them."""
        seq = self._sequence(seq_id)
        if not 0 <= num_tokens <= len(seq.tokens):
            raise ValueError(f"sequence {seq_id}: cannot truncate {len(seq.tokens)} tokens to {num_tokens}")
        num_computed = min(seq.num_computed, num_tokens)
        for table in seq.tables:
            if first_visible(num_computed, table.spec.window) < table.first * table.spec.block_size:
                raise ValueError(
                    f"sequence {seq_id}: cannot truncate to {num_tokens} tokens; blocks that its sliding "
                    f"window of {table.spec.window} would need again were given back"
                )
        dropped: list[tuple[int, Block]] = []
        for group, table in enumerate(seq.tables):
            size = table.spec.block_size
            while len(table.blocks) * size >= num_tokens + size:
                block = table.pop()
                seq.changed[group, len(table.blocks)] = None
                if block is not None:
                    dropped.append((len(table.blocks) * size, block))
            self.matcher.rewind_tip(group, table, num_tokens // size)
        self._release(dropped)
        del seq.tokens[num_tokens:]
        seq.chain.truncate(num_tokens)
        self.total_computed -= seq.num_computed - num_computed
        seq.num_computed = seq.fast_end = num_computed
        seq.granted = min(seq.granted, num_tokens)
        seq.update_mark_end()

    def release_sequence(self, seq_id: int) -> None:
        """End a sequence: let go of all its blocks, the tail before the head."""
        seq = self._sequence(seq_id)
        del self._sequences[seq_id]
        dropped: list[tuple[int, Block]] = []
        for group, table in enumerate(seq.tables):
            while table.blocks:
                block = table.pop()
                if block is not None:
                    dropped.append((len(table.blocks) * table.spec.block_size, block))
            self.matcher.close_tip(group, table.tip)
        self._release(dropped)
        self.total_computed -= seq.num_computed

    # Slots

    def plan_slots(self, seq_id: int, num_tokens: int) -> SlotPlan:
        """What it takes to write the next ``num_tokens`` known tokens. Changes nothing."""
        seq = self._waiting(seq_id, num_tokens)
        if seq.num_computed + num_tokens <= seq.fast_end:
            return SlotPlan(seq_id, num_tokens, 0, True)
        needed, given_back, saved = self.granter.needs(seq, num_tokens)
        available = self.pool.num_available + given_back
        if needed > available:
            needed -= saved
        return SlotPlan(seq_id, num_tokens, needed, needed <= available)

    def commit(self, plan: SlotPlan) -> SlotGrant:
        """Carry out a plan.

        Raises:
            OutOfBlocks: it does not fit; nothing is changed.
        """
        seq = self._waiting(plan.seq_id, plan.num_tokens)
        if seq.num_computed + plan.num_tokens <= seq.fast_end:
            return SlotGrant([], [])
        needed, given_back, saved = self.granter.needs(seq, plan.num_tokens)
        take_over = needed > self.pool.num_available + given_back
        self.pool.check_available(needed - saved if take_over else needed, also=given_back)
        self.granter.leave_window(seq)
        copies: list[BlockCopy] = []
        self.granter.grant(seq, plan.num_tokens, copies, take_over=take_over)
        return SlotGrant(self.granter.take_updates(seq), copies)

    def leave_window(self, seq_id: int) -> None:
        """Give back now the blocks that no token from here on sees; committing does so anyway."""
        self.granter.leave_window(self._sequence(seq_id))

    def retell(self, seq_id: int) -> None:
        """Have all table entries among the updates of the next commit, for a row that has seen none."""
        self._sequence(seq_id).retell()

    def commit_step(self, work: Iterable[tuple[int, int]]) -> StepGrant:
        """Plan and commit a whole step of ``(seq_id, num_tokens)``, all of it or nothing.

        Cheap where no table changes; only sequences whose tables change have updates.

        Raises:
            OutOfBlocks: it may not fit; nothing is changed. ``commit`` one by one, or without some, may do.
        """
        sequences, granter = self._sequences, self.granter
        slow = []
        needed = given_back = 0
        for seq_id, num_tokens in work:
            seq = sequences.get(seq_id)
            if seq is None or num_tokens < 1 or (stop := seq.num_computed + num_tokens) > len(seq.tokens):
                seq = self._waiting(seq_id, num_tokens)  # raises
            elif stop > seq.fast_end:
                slow.append((seq, num_tokens))
                need = granter.needs(seq, num_tokens)
                needed += need[0]
                given_back += need[1]
        self.pool.check_available(needed, also=given_back)
        for seq, _ in slow:
            granter.leave_window(seq)
        grant = StepGrant({}, [])
        for seq, num_tokens in slow:
            granter.grant(seq, num_tokens, grant.copies)
            grant.block_updates[seq.seq_id] = granter.take_updates(seq)
        return grant

    def complete_copies(self, copies: Iterable[tuple[int, int]]) -> None:
        """These copies have run: unpin both ends."""
        self.granter.complete_copies(copies)

    def mark_computed(self, seq_id: int, num_computed: int) -> None:
        """The KV of the first ``num_computed`` tokens is written; blocks this completes can be found."""
        seq = self._sequences.get(seq_id) or self._sequence(seq_id)
        if seq.num_computed <= num_computed <= seq.mark_end and num_computed <= len(seq.tokens):
            self.total_computed += num_computed - seq.num_computed
            seq.num_computed = num_computed
        else:
            self._mark(seq, num_computed)

    def advance_step(self, results: Iterable[tuple[int, int, int | None]]) -> None:
        """``mark_computed`` and ``append_tokens`` for a whole step.

        Args:
            results: ``(seq_id, num_written, token_id)``: so many more tokens have their KV written, and this
                token, or None, comes after all known ones. If one is refused, those before it count.
        """
        sequences = self._sequences
        total = 0
        try:
            for seq_id, num_written, token_id in results:
                seq = sequences.get(seq_id) or self._sequence(seq_id)
                tokens = seq.tokens
                num_computed = seq.num_computed + num_written
                if num_written >= 0 and num_computed <= seq.mark_end and num_computed <= len(tokens):
                    total += num_written
                    seq.num_computed = num_computed
                else:
                    self._mark(seq, num_computed)
                if token_id is not None:
                    tokens.append(token_id)
        finally:
            self.total_computed += total

    # Reading

    @property
    def num_free_blocks(self) -> int:
        """Frames that can be had at once: free ones and those of blocks that nobody holds."""
        return self.pool.num_available

    def seq_len(self, seq_id: int) -> int:
        """Number of known tokens."""
        return len(self._sequence(seq_id).tokens)

    def num_computed(self, seq_id: int) -> int:
        """Number of leading tokens whose KV is written."""
        return self._sequence(seq_id).num_computed

    def block_tables(self, seq_id: int) -> list[list[int]]:
        """The sequence's block ids, one list per table; 0 where a block left the window."""
        return [
            [block.frames[column] if block else 0 for block in table.blocks]
            for table in self._sequence(seq_id).tables
            for column in range(table.spec.num_tables)
        ]

    def tables(self, seq_id: int) -> list[BlockTable]:
        """The sequence's own block tables, one per group; to be read only, and before anything changes."""
        return self._sequence(seq_id).tables

    def explain(self, seq_id: int) -> PrefixExplanation:
        """Why the cached prefix, with which this sequence began, ended where it did."""
        return self._sequence(seq_id).explanation

    def stats(self) -> PagingStats:
        """Numbers of this moment; the cost depends on nothing but the number of groups."""
        pool, matcher = self.pool, self.matcher
        return PagingStats(
            total_blocks=pool.num_blocks - 1,
            free_blocks=pool.num_free,
            cached_blocks=pool.num_cached,
            used_blocks=pool.num_owned + pool.num_in_flight,
            shared_blocks=pool.num_shared,
            pinned_blocks=pool.num_pinned,
            sequences=len(self._sequences),
            query_tokens=matcher.query_tokens,
            hit_tokens=matcher.hit_tokens,
            evictions=pool.num_evictions,
            copies=self.granter.num_copies,
            collisions=sum(index.num_collisions for index in matcher.indexes),
            groups=tuple(map(GroupStats.of, self.groups, self.counts, repeat(self.total_computed))),
        )

    def census(self) -> Census:
        """Where every block id is; the cost is proportional to the pool and the tables."""
        tables = {seq_id: seq.tables for seq_id, seq in self._sequences.items()}
        return Census.take(self.pool, tables, self.granter.in_flight.values())

    def check_invariants(self) -> None:
        """Raise BrokenInvariant, naming block and owners, if the books do not balance. Slow."""
        sequences = self._sequences.values()
        invariants.check(self.pool, self.matcher, sequences, self.granter.in_flight.values(), self.counts)
        computed = sum(seq.num_computed for seq in sequences)
        if computed != self.total_computed:
            raise invariants.BrokenInvariant(f"total_computed is {self.total_computed}, not {computed}")

    def slots(self, seq_id: int, table: int, start: int, stop: int) -> list[int]:
        """Slots ``block_id * block_size + offset`` of positions ``start .. stop - 1`` in one table."""
        seq = self._sequence(seq_id)
        if not 0 <= table < len(self._table_groups):
            raise ValueError(f"table {table}: there are tables 0 to {len(self._table_groups) - 1}")
        group, column = self._table_groups[table]
        size, blocks, first = self.groups[group].block_size, seq.tables[group].blocks, seq.tables[group].first
        if not first * size <= start <= stop <= len(blocks) * size:
            raise ValueError(
                f"sequence {seq_id}: positions {start} to {stop} asked of table {table}, which holds "
                f"{first * size} to {len(blocks) * size}"
            )
        frames = [block.frames[column] if block else 0 for block in blocks]
        return [frames[p // size] * size + p % size for p in range(start, stop)]

    # How it is done

    def _sequence(self, seq_id: int) -> Sequence:
        seq = self._sequences.get(seq_id)
        if seq is None:
            state = "was released" if 0 < seq_id < self._next_id else "never existed"
            raise ValueError(f"sequence {seq_id} {state}")
        return seq

    def _waiting(self, seq_id: int, num_tokens: int) -> Sequence:
        """The sequence, if that many of its tokens wait to be computed."""
        seq = self._sequences.get(seq_id) or self._sequence(seq_id)
        waiting = len(seq.tokens) - seq.num_computed
        if not 1 <= num_tokens <= waiting:
            raise ValueError(f"sequence {seq_id}: slots for {num_tokens} tokens asked, {waiting} are waiting")
        return seq

    def _mark(self, seq: Sequence, num_computed: int) -> None:
        known = len(seq.tokens)
        if not seq.num_computed <= num_computed <= seq.granted or num_computed > known:
            raise ValueError(
                f"sequence {seq.seq_id}: num_computed={num_computed} must be from {seq.num_computed} "
                f"(computed already) to {min(seq.granted, known)} (known tokens that have slots)"
            )
        self.total_computed += num_computed - seq.num_computed
        seq.num_computed = num_computed
        self.matcher.publish(seq, self.pool)

    def _release(self, dropped: list[tuple[int, Block]]) -> None:
        """Let go of blocks, those at the highest positions first, whatever their group."""
        if len(self.groups) > 1:
            dropped.sort(key=lambda item: item[0], reverse=True)
        for _, block in dropped:
            self.pool.release(block)
