"""A naive model of the memory policy, run beside the real one and compared after every operation.

Everything here is a dictionary or a list and nothing is clever. ``slots`` is the data-level shadow: what a
runner would have written into each slot of each frame. A tag says for which table it was written and for
which tokens, up to its own position, so a sequence that reads a slot can tell whether it is exactly its own.
"""

from itertools import pairwise

from octavo.core.errors import OutOfBlocks
from octavo.paging import GroupSpec, KVManager
from octavo.paging.hashing import content_hash


def colliding_hash(parent: bytes, content: bytes) -> bytes:
    """One of two names for everything."""
    return b"even" if content_hash(parent, content)[0] % 2 else b"odd"


class PagingModel:
    """One KVManager, its shadow, and the operations on both."""

    def __init__(
        self,
        groups: list[GroupSpec],
        num_blocks: int,
        *,
        prefix_cache: bool = True,
        hash_function=content_hash,
    ) -> None:
        self.kv = KVManager(
            num_blocks=num_blocks, groups=groups, prefix_cache=prefix_cache, hash_function=hash_function
        )
        self.groups = groups
        self.num_blocks = num_blocks
        self.tables = [(g, spec) for g, spec in enumerate(groups) for _ in range(spec.num_tables)]
        self.cached = prefix_cache
        self.exact = hash_function is content_hash  # with colliding names, what is found is anyone's guess
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.salts: dict[int, str] = {}
        self.rows: dict[int, list[dict[int, int]]] = {}  # per sequence and table: index -> block id
        self.slots: dict[tuple[int, int], tuple] = {}  # (block id, offset) -> tag
        self.contents: dict[
            tuple, tuple[int, ...]
        ] = {}  # (group, salt, tokens up to the block's end) -> frames
        self.pending: list[tuple[int, int]] = []  # copies that have run but are not reported complete
        self.events = dict.fromkeys(("hits", "partial", "evicted", "copies", "out", "taken", "moved"), 0)

    # Operations

    def create(self, tokens: list[int], salt: str = "", *, use_match: bool = True) -> int:
        before = self._snapshot()
        match = self.kv.match(tokens, salt=salt)
        cached = match.num_tokens
        assert cached <= max(0, len(tokens) - 1)
        if self.exact:
            assert cached == self._longest(tokens, salt)
        rest = len(tokens) - cached
        admitted = self.kv.can_admit(match, rest)
        assert self._snapshot() == before
        seq = self.kv.create_sequence(tokens, salt=salt, match=match if use_match else None)
        self.tokens[seq], self.salts[seq] = list(tokens), salt
        self.computed[seq] = self.kv.num_computed(seq)
        self.rows[seq] = [{} for _ in self.tables]
        assert self.computed[seq] == cached
        if rest:
            assert self.kv.plan_slots(seq, rest).fits == admitted
        explanation = self.kv.explain(seq)
        assert explanation.num_cached == cached
        assert (explanation.reason == "complete") == (self.cached and cached >= len(tokens) - 1)
        self.events["hits"] += cached > 0
        self.events["partial"] += any(cached % spec.block_size for spec in self.groups)
        self._check()
        return seq

    def append(self, seq: int, tokens: list[int]) -> None:
        self.kv.append_tokens(seq, tokens)
        self.tokens[seq] += tokens
        self._check()

    def fork(self, seq: int) -> int:
        twin = self.kv.fork(seq)
        self.tokens[twin], self.salts[twin] = self.tokens[seq][:], self.salts[seq]
        self.computed[twin] = self.computed[seq]
        self.rows[twin] = [{} for _ in self.tables]
        self._check()
        return twin

    def change_row(self, seq: int) -> None:
        """The sequence goes on in a row that knows nothing of it."""
        self.kv.retell(seq)
        self.rows[seq] = [{} for _ in self.tables]
        self._check()

    def truncate(self, seq: int, num_tokens: int) -> None:
        computed = min(self.computed[seq], num_tokens)
        tables = self.kv.block_tables(seq)
        gone = any(
            0 in tables[t][first_visible(computed, spec) // spec.block_size : computed // spec.block_size + 1]
            for t, (_, spec) in enumerate(self.tables)
        )
        try:
            self.kv.truncate(seq, num_tokens)
        except ValueError:
            assert gone
        else:
            assert not gone
            del self.tokens[seq][num_tokens:]
            self.computed[seq] = computed
        self._check()

    def release(self, seq: int) -> None:
        self.kv.release_sequence(seq)
        for book in (self.tokens, self.computed, self.salts, self.rows):
            del book[seq]
        self._check()

    def complete_copies(self) -> None:
        self.kv.complete_copies(self.pending)
        self.pending = []
        self._check()

    def step(
        self,
        work: list[tuple[int, int]],
        *,
        batched: bool = False,
        accept: float = 1.0,
        complete: bool = True,
    ) -> None:
        """One engine step: plan and commit, run the copies, write, mark what was accepted as computed."""
        copies: list[tuple[int, int]] = []
        done = self._commit_step(work, copies) if batched else self._commit_each(work, copies)
        for source, destination in copies:
            for offset in range(max(spec.block_size for spec in self.groups)):
                tag = self.slots.get((source, offset))
                if tag is None:
                    self.slots.pop((destination, offset), None)
                else:
                    self.slots[destination, offset] = tag
        self.events["copies"] += len(copies)
        for seq, count in done:
            self._write(seq, count)
        self.pending += copies
        if complete:
            self.complete_copies()
        for seq, count in done:
            accepted = int(count * accept)
            self._mark(seq, accepted)
            if accepted < count:
                self.truncate(seq, self.computed[seq] + 1)
        self._check()

    # The two ways to commit

    def _commit_each(self, work, copies) -> list[tuple[int, int]]:
        done = []
        for seq, count in work:
            before = self._snapshot()
            needed, given_back, saved = self._naive_needs(seq, count)
            room = self.kv.num_free_blocks + given_back
            plan = self.kv.plan_slots(seq, count)
            assert self._snapshot() == before
            assert plan.fits == (needed - saved <= room)
            assert plan.num_blocks == (needed if needed <= room else needed - saved)
            try:
                grant = self.kv.commit(plan)
            except OutOfBlocks as error:
                assert not plan.fits
                self._refused(error, before)
                continue
            assert plan.fits
            if needed > room:
                self._taken_over(seq, count)
            self._granted(before, {seq: grant.block_updates}, grant.copies, copies)
            self._check_row(seq)
            done.append((seq, count))
        return done

    def _commit_step(self, work, copies) -> list[tuple[int, int]]:
        before = self._snapshot()
        needs = [self._naive_needs(seq, count) for seq, count in work]
        fits = sum(n[0] for n in needs) <= self.kv.num_free_blocks + sum(n[1] for n in needs)
        try:
            grant = self.kv.commit_step(work)
        except OutOfBlocks as error:
            assert not fits
            self._refused(error, before)
            return []
        assert fits
        self._granted(before, grant.block_updates, grant.copies, copies)
        for seq, _ in work:
            self._check_row(seq)
        return work

    def _refused(self, error: OutOfBlocks, before) -> None:
        """The numbers say why, and nothing has changed."""
        assert error.needed > error.free + error.evictable
        assert self._snapshot() == before
        self.events["out"] += 1

    def _granted(self, before, updates, new_copies, copies) -> None:
        """Apply the updates and see which cached blocks had to go."""
        copies += new_copies
        for seq, own in updates.items():
            for table, index, block_id in own:
                self.rows[seq][table][index] = block_id
        census = self.kv.census()
        _, old_tables, old_cached, old_free = before
        fresh = {
            block_id
            for seq in updates
            for old, new in zip(old_tables[seq], self.kv.block_tables(seq), strict=True)
            for index, block_id in enumerate(new)
            if block_id and (index >= len(old) or old[index] != block_id)
        }
        evicted = [block_id for block_id in old_cached if block_id not in census.cached]
        assert evicted == old_cached[: len(evicted)], "evicted out of order"
        assert not evicted or len(old_free) < len(fresh), "evicted without need"
        self.events["evicted"] += len(evicted)
        gone = {*fresh, *census.free}
        self.contents = {key: frames for key, frames in self.contents.items() if not gone & {*frames}}

    def _taken_over(self, seq: int, count: int) -> None:
        """The sequence's own named blocks in the range to be written lose their names."""
        start = self.computed[seq]
        owners = self._owners()
        for g, index, frames in self._blocks(seq):
            size = self.groups[g].block_size
            if start // size <= index <= (start + count - 1) // size and len(owners[g, frames]) == 1:
                for key in [key for key, value in self.contents.items() if value == frames and key[0] == g]:
                    del self.contents[key]
                    self.events["taken"] += 1

    # Writing and reading

    def _write(self, seq: int, count: int) -> None:
        start = self.computed[seq]
        named = {frame for frames in self.contents.values() for frame in frames}
        for position in range(start, start + count):
            for table, (_, spec) in enumerate(self.tables):
                (slot,) = self.kv.slots(seq, table, position, position + 1)
                block_id, offset = divmod(slot, spec.block_size)
                assert block_id not in named, f"sequence {seq} writes to the published block {block_id}"
                self.slots[block_id, offset] = self._tag(seq, table, position)

    def _mark(self, seq: int, count: int) -> None:
        old = self.computed[seq]
        before = {(g, index): frames for g, index, frames in self._blocks(seq)}
        self.kv.mark_computed(seq, old + count)
        self.computed[seq] = old + count
        if not (self.cached and self.exact):
            return
        after = {(g, index): frames for g, index, frames in self._blocks(seq)}
        for (g, index), frames in before.items():
            end = (index + 1) * self.groups[g].block_size
            if end <= old + count:
                key = (g, self.salts[seq], tuple(self.tokens[seq][:end]))
                assert after[g, index] == self.contents.setdefault(key, frames)
                self.events["moved"] += after[g, index] != frames

    def _tag(self, seq: int, table: int, position: int) -> tuple:
        return table, self.salts[seq], tuple(self.tokens[seq][: position + 1])

    # Naive answers

    def _longest(self, tokens: list[int], salt: str) -> int:
        if not self.cached:
            return 0
        return next(
            length
            for length in range(max(0, len(tokens) - 1), -1, -1)
            if all(self._serves(g, spec, tokens, salt, length) for g, spec in enumerate(self.groups))
        )

    def _serves(self, g: int, spec: GroupSpec, tokens: list[int], salt: str, length: int) -> bool:
        size = spec.block_size
        for index in range(first_visible(length, spec) // size, -(-length // size)):
            end = (index + 1) * size
            known = tuple(tokens[: min(end, length)])
            if not any(
                key[0] == g and key[1] == salt and len(key[2]) == end and key[2][: len(known)] == known
                for key in self.contents
            ):
                return False
        return True

    def _naive_needs(self, seq: int, count: int) -> tuple[int, int, int]:
        owners = self._owners()
        named = {(key[0], frames) for key, frames in self.contents.items()}
        pinned = {block_id for pair in self.kv.granter.in_flight for block_id in pair}
        start, stop = self.computed[seq], self.computed[seq] + count
        mine = {(g, index): frames for g, index, frames in self._blocks(seq)}
        needed = given_back = saved = 0
        for g, spec in enumerate(self.groups):
            for index in range(start // spec.block_size, -(-stop // spec.block_size)):
                frames = mine.get((g, index))
                is_named = (g, frames) in named if self.exact else self._is_named(seq, g, index)
                if frames is None or len(owners[g, frames]) > 1 or is_named:
                    needed += spec.num_tables
                    saved += spec.num_tables * (frames is not None and len(owners[g, frames]) == 1)
            for (group, index), frames in mine.items():
                left = (index + 1) * spec.block_size <= first_visible(start, spec)
                if group == g and left and len(owners[g, frames]) == 1 and not pinned & {*frames}:
                    given_back += spec.num_tables
        return needed, given_back, saved

    def _is_named(self, seq: int, g: int, index: int) -> bool:
        table = self.kv._sequences[seq].tables[g]
        return index < len(table.blocks) and table.blocks[index].node is not None

    def _blocks(self, seq: int) -> list[tuple[int, int, tuple[int, ...]]]:
        """(group, index, frames) of every block in the sequence's tables."""
        tables = self.kv.block_tables(seq)
        blocks = []
        for g in range(len(self.groups)):
            columns = [tables[t] for t, (group, _) in enumerate(self.tables) if group == g]
            blocks += [(g, i, frames) for i, frames in enumerate(zip(*columns, strict=True)) if all(frames)]
        return blocks

    def _owners(self) -> dict[tuple, list[int]]:
        owners: dict[tuple, list[int]] = {}
        for seq in self.tokens:
            for g, _, frames in self._blocks(seq):
                owners.setdefault((g, frames), []).append(seq)
        return owners

    def _snapshot(self) -> tuple:
        census = self.kv.census()
        tables = {seq: self.kv.block_tables(seq) for seq in self.tokens}
        return self.kv.stats(), tables, census.cached, census.free

    # Comparison after every operation

    def _check(self) -> None:
        kv = self.kv
        kv.check_invariants()
        for seq, tokens in self.tokens.items():
            assert kv.seq_len(seq) == len(tokens)
            assert kv.num_computed(seq) == self.computed[seq]
            tables = kv.block_tables(seq)
            for table, (_, spec) in enumerate(self.tables):
                size = spec.block_size
                start = first_visible(self.computed[seq], spec)
                for position in range(start, self.computed[seq]):
                    slot = tables[table][position // size], position % size
                    assert self.slots.get(slot) == self._tag(seq, table, position)
        self._check_numbers()
        if self.exact:
            self._check_cached()

    def _check_row(self, seq: int) -> None:
        """After a commit, the row that was kept by updates alone equals the table."""
        for row, table in zip(self.rows[seq], self.kv.block_tables(seq), strict=True):
            assert {i: b for i, b in row.items() if b} == {i: b for i, b in enumerate(table) if b}

    def _check_numbers(self) -> None:
        census, stats, owners = self.kv.census(), self.kv.stats(), self._owners()
        held = {frame for _, frames in owners for frame in frames}
        loose = {frame for pair in self.pending for frame in pair} - held
        everywhere = [*held, *census.in_flight, *census.cached, *census.free]
        assert sorted(everywhere) == list(range(1, self.num_blocks))
        assert {*census.in_flight} == loose
        assert self.kv.num_free_blocks == self.num_blocks - 1 - len(held) - len(loose)
        assert stats.free_blocks == len(census.free)
        assert stats.cached_blocks == len(census.cached)
        assert stats.used_blocks == len(held) + len(loose)
        assert stats.pinned_blocks == len({frame for pair in self.pending for frame in pair})
        assert stats.shared_blocks == len(census.shared())
        assert stats.shared_blocks == sum(len(f) for (_, f), who in owners.items() if len(who) > 1)
        assert stats.table_frames == sum(len(frames) * len(who) for (_, frames), who in owners.items())
        for g, (spec, group) in enumerate(zip(self.groups, stats.groups, strict=True)):
            size, tables = spec.block_size, []
            for seq in self.tokens:
                tables.append([(i, frames) for group_, i, frames in self._blocks(seq) if group_ == g])
            assert group.table_entries == sum(map(len, tables))
            assert group.unfilled_tokens == sum(
                len({*range(i * size, (i + 1) * size)} - {*range(computed)})
                for table, computed in zip(tables, self.computed.values(), strict=True)
                for i, _ in table
            )
            assert group.breaks == sum(
                right[0] != left[-1] + 1 for table in tables for (_, left), (_, right) in pairwise(table)
            )

    def _check_cached(self) -> None:
        """Cached are exactly the named blocks that nobody holds."""
        held = {frame for _, frames in self._owners() for frame in frames}
        held |= {frame for pair in self.pending for frame in pair}
        idle = {frame for frames in self.contents.values() for frame in frames} - held
        assert {*self.kv.census().cached} == idle


def first_visible(position: int, spec: GroupSpec) -> int:
    """The first position that a token at ``position`` sees."""
    return 0 if spec.window is None else max(0, position - spec.window + 1)
