"""Which tokens the next step computes: pure policy over requests, block ids and rows.

A request is computed tokens catching up with known tokens, so prefill, decode and resuming after a preemption
are one thing. One token budget per step pays for a token of every request that decodes, then for chunks of
the prompts still to be computed, then for new requests from the head of the queue.

When the block pool runs dry, an older request takes the blocks of the latest one: that one loses its row and
its sequence but keeps its tokens, and heads the queue. Its full blocks keep their names, so resuming finds
again whatever was not overwritten meanwhile. The oldest request can always go on.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from octavo.core.errors import InvalidRequest, OutOfBlocks
from octavo.core.request import FinishReason, Request
from octavo.engine.step import BlockUpdate, RowOpen, RowWork, StepPlan, StepResult
from octavo.paging.explain import PrefixExplanation
from octavo.paging.grants import SlotPlan, TableUpdate
from octavo.paging.groups import most_frames
from octavo.paging.invariants import BrokenInvariant
from octavo.paging.manager import KVManager
from octavo.paging.matching import PrefixMatch

# After so many preemptions a request comes back only when the pool can hold the most that it and everything
# ahead of it may still grow to; from then on nothing can preempt it.
MAX_PREEMPTIONS: Final = 3

# Of so many requests, the latest ones, it is remembered why their cached prefix ended where it did.
MAX_EXPLAINED: Final = 4096


@dataclass(slots=True, eq=False)
class _Running:
    """A request that holds a row and a sequence. It has slots for its tokens below ``num_slots``."""

    request: Request
    seq_id: int
    row: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Where the requests are, how often one had to give way, and the most that was ever held.

    Attributes:
        peak_blocks, peak_shared_blocks: blocks held, and held by several requests, in any step so far.
    """

    num_running: int
    num_waiting: int
    num_preemptions: int
    num_steps: int
    peak_blocks: int
    peak_shared_blocks: int


class Scheduler:
    """First come, first served. A step is ``schedule()``, the plan carried out elsewhere, ``commit()``."""

    def __init__(self, kv: KVManager, *, max_num_seqs: int, max_step_tokens: int) -> None:
        self.kv = kv
        self.max_step_tokens = max_step_tokens
        self._waiting: deque[Request] = deque()
        self._running: dict[int, _Running] = {}  # by sequence id, oldest first
        self._free_rows = list(reversed(range(max_num_seqs)))
        self._closed_rows: list[int] = []
        self._plan: StepPlan | None = None  # the step in progress
        self._planned: list[_Running] = []  # by position in the plan's work
        self._short_of_blocks = False  # whether the step in progress found too few
        self._blocked_at = -1  # free blocks when the head of the queue last did not fit
        self._explanations: dict[int, PrefixExplanation] = {}  # by request id, oldest first
        self._num_preemptions = 0
        self._num_steps = 0
        self._peak_blocks = 0
        self._peak_shared_blocks = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._running or self._waiting)

    def stats(self) -> SchedulerStats:
        """Counts at this moment."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_preemptions=self._num_preemptions,
            num_steps=self._num_steps,
            peak_blocks=self._peak_blocks,
            peak_shared_blocks=self._peak_shared_blocks,
        )

    def explain(self, request_id: int) -> PrefixExplanation | None:
        """Why a request's cached prefix ended where it did when it was first admitted.

        None if it has not started yet, or if so many came after it that it is forgotten.
        """
        return self._explanations.get(request_id)

    def held_blocks(self) -> dict[int, list[int]]:
        """Block ids of each running request, by request id; a shared block appears under each."""
        return {
            running.request.request_id: [b for table in self.kv.block_tables(seq_id) for b in table if b]
            for seq_id, running in self._running.items()
        }

    # Requests

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: it could never run, even alone: the pool has fewer blocks than it may need.
        """
        needed = most_frames(self.kv.groups, request.max_len - 1)  # the last token's KV is never computed
        usable = self.kv.pool.num_blocks - 1
        if needed > usable:
            raise InvalidRequest(
                f"{request.prompt_len} prompt tokens and up to {request.max_len - request.prompt_len} new "
                f"ones need {needed} KV blocks, the pool has {usable}: "
                "ask for fewer tokens or give the engine more kv_memory",
                param="max_tokens",
            )
        self._waiting.append(request)

    def abort(self, request_id: int) -> bool:
        """Drop a request, wherever it is. Returns whether it was still there."""
        everywhere = [r.request for r in self._running.values()] + list(self._waiting)
        for request in everywhere:
            if request.request_id == request_id:
                self.finish(request, "abort")
                return True
        return False

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request between two steps and let its blocks go."""
        if self._plan is not None:
            raise RuntimeError("a request cannot be ended between schedule() and commit()")
        for running in self._running.values():
            if running.request is request:
                self._leave(running)
                break
        else:
            self._waiting.remove(request)
            self._blocked_at = -1
        request.finish_reason = reason

    # One step

    def schedule(self) -> StepPlan:
        """Choose the next step's work and take blocks for it; there is work unless there are no requests."""
        if self._plan is not None:
            raise RuntimeError("schedule() called again before commit()")
        self._plan = plan = StepPlan()
        self._num_steps += 1
        self._short_of_blocks = False
        wanted, budget = self._share_out()
        try:
            grant = self.kv.commit_step([(running.seq_id, count) for running, count in wanted])
        except OutOfBlocks:
            for running in self._running.values():
                self.kv.leave_window(running.seq_id)
            for running, count in wanted:
                if running.seq_id in self._running:  # not preempted for the sake of an older one
                    self._advance(running, count)
        else:
            for seq_id, updates in grant.block_updates.items():
                self._record_updates(self._running[seq_id].row, updates)
            plan.copies.extend(grant.copies)
            for running, count in wanted:
                self._plan_work(running, count)
        if self._waiting and not self._short_of_blocks:
            self._admit(budget)
        plan.closed_rows.extend(self._closed_rows)
        self._closed_rows.clear()
        pool = self.kv.pool
        self._peak_blocks = max(self._peak_blocks, pool.num_blocks - 1 - pool.num_available)
        self._peak_shared_blocks = max(self._peak_shared_blocks, pool.num_shared)
        return plan

    def commit(self, result: StepResult) -> list[Request]:
        """Record what the step computed. Returns the requests that got a token or failed, in work order."""
        plan = self._plan
        if plan is None:
            raise RuntimeError("commit() called without schedule()")
        if plan.copies:
            self.kv.complete_copies(plan.copies)
        planned = self._planned
        self._plan, self._planned = None, []
        advanced: list[Request] = []
        progress: list[tuple[int, int, int | None]] = []
        leaving = []
        for running, work in zip(planned, plan.work, strict=True):
            request, token_id = running.request, None
            request.num_computed = running.num_slots
            if work.sample:
                position = len(advanced)
                advanced.append(request)
                if position in result.failures:  # its KV is not to be trusted: leave without publishing it
                    request.finish_reason, request.error = "error", result.failures[position]
                    leaving.append(running)
                    continue
                token_id = result.token_ids[position]
                request.token_ids.append(token_id)
                if position in result.logprobs:
                    request.logprobs.append(result.logprobs[position])
                if token_id in request.stop_ids:
                    request.finish_reason = "stop"
                elif len(request.token_ids) >= request.max_len:
                    request.finish_reason = "length"
                if request.finish_reason is not None:
                    leaving.append(running)
            progress.append((running.seq_id, len(work.token_ids), token_id))
        self.kv.advance_step(progress)
        for running in leaving:
            self._leave(running)
        return advanced

    def check_invariants(self) -> None:
        """Raise BrokenInvariant if rows, requests and blocks do not add up. Slow."""
        rows = [running.row for running in self._running.values()] + self._free_rows
        if len(set(rows)) != len(rows):
            raise BrokenInvariant(f"a row has two owners: {sorted(rows)}")
        num_held = self.kv.pool.num_blocks - 1 - self.kv.num_free_blocks
        if num_held and not self._running:
            raise BrokenInvariant(f"{num_held} blocks are held though nothing runs")
        self.kv.check_invariants()

    # How it is done

    def _share_out(self) -> tuple[list[tuple[_Running, int]], int]:
        """Tokens each running request should advance by, and what is left of the budget."""
        pending = [(r, len(r.request.token_ids) - r.num_slots) for r in self._running.values()]
        budget = self.max_step_tokens - sum(1 for _, count in pending if count == 1)
        wanted = []
        for running, count in pending:
            if count > 1:
                count = min(count, budget)  # noqa: PLW2901
                budget -= count
            if count:
                wanted.append((running, count))
        return wanted, budget

    def _advance(self, running: _Running, count: int) -> None:
        """Take slots for up to ``count`` tokens and plan them, preempting later requests if need be."""
        assert self._plan is not None
        slots = self._fit(running, count)
        while slots is None:
            latest = next(reversed(self._running.values()))
            self._short_of_blocks = True
            if latest is running:
                if len(self._running) == 1:
                    raise OutOfBlocks(
                        needed=1, free=self.kv.num_free_blocks, evictable=0, hint="no one to preempt"
                    )
                return  # it waits where it is: older ones finish, or take its blocks when they need them
            self._preempt(latest)
            slots = self._fit(running, count)
        grant = self.kv.commit(slots)
        self._record_updates(running.row, grant.block_updates)
        self._plan.copies.extend(grant.copies)
        self._plan_work(running, slots.num_tokens)

    def _fit(self, running: _Running, count: int) -> SlotPlan | None:
        """A plan for the most of ``count`` tokens that fits in the free blocks, or None if not one does."""
        slots = self.kv.plan_slots(running.seq_id, count)
        if slots.fits:
            return slots
        best = None
        low, high = 1, count - 1
        while low <= high:
            middle = (low + high) // 2
            slots = self.kv.plan_slots(running.seq_id, middle)
            if slots.fits:
                best, low = slots, middle + 1
            else:
                high = middle - 1
        return best

    def _record_updates(self, row: int, updates: Iterable[TableUpdate]) -> None:
        assert self._plan is not None
        for table, index, block_id in updates:
            self._plan.block_updates.append(BlockUpdate(row, table, index, block_id))

    def _plan_work(self, running: _Running, count: int) -> None:
        assert self._plan is not None
        token_ids, start = running.request.token_ids, running.num_slots
        running.num_slots = end = start + count
        self._plan.work.append(RowWork(running.row, start, token_ids[start:end], end == len(token_ids)))
        self._planned.append(running)

    def _admit(self, budget: int) -> None:
        """Start requests from the head of the queue while tokens, rows and blocks last.

        None starts before all that run got their share. So only the latest can be in the middle of its
        prompt, no more run than the budget has tokens, and no prompt waits behind decodes for ever.
        """
        assert self._plan is not None
        kv = self.kv
        while self._waiting and self._free_rows and budget > 0 and not self._short_of_blocks:
            num_free = kv.num_free_blocks
            if self._running and num_free <= self._blocked_at:
                return  # nothing came free since the head last did not fit
            request = self._waiting[0]
            match = kv.match(request.token_ids)
            num_pending = len(request.token_ids) - match.num_tokens
            if self._running and self._blocks_spoken_for(request, match) > num_free:
                self._blocked_at = num_free
                return
            self._waiting.popleft()
            self._blocked_at = -1
            request.num_computed = match.num_tokens
            seq_id = kv.create_sequence(request.token_ids, match=match)
            if not request.num_preemptions:
                request.num_cached_tokens = match.num_tokens
                self._explanations[request.request_id] = kv.explain(seq_id)
                if len(self._explanations) > MAX_EXPLAINED:
                    del self._explanations[next(iter(self._explanations))]
            running = _Running(request, seq_id, self._free_rows.pop(), match.num_tokens)
            self._running[seq_id] = running
            token_ids, prompt_len = list(request.token_ids), request.prompt_len
            self._plan.opened_rows.append(
                RowOpen(running.row, request.params, request.seed, token_ids, prompt_len)
            )
            self._advance(running, min(num_pending, budget))
            budget -= running.num_slots - match.num_tokens

    def _blocks_spoken_for(self, candidate: Request, match: PrefixMatch) -> int:
        """Blocks the pool must have free to admit the candidate.

        That is what it and the running requests are sure to need soon: the rest of their prompts, and a block
        more for each that runs. For a candidate that was preempted too often it is the most they can ever
        need.
        """
        final = candidate.num_preemptions >= MAX_PREEMPTIONS
        total = self.kv.growth_from(match, self._goal(candidate, final=final))
        for running in self._running.values():
            goal = self._goal(running.request, final=final)
            total += self.kv.growth(running.seq_id, goal, spare_blocks=0 if final else 1)
        return total

    @staticmethod
    def _goal(request: Request, *, final: bool) -> int:
        return request.max_len - 1 if final else len(request.token_ids)

    def _preempt(self, running: _Running) -> None:
        request = running.request
        self._leave(running)
        request.num_computed = 0
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._waiting.appendleft(request)

    def _leave(self, running: _Running) -> None:
        del self._running[running.seq_id]
        self.kv.release_sequence(running.seq_id)
        self._closed_rows.append(running.row)
        self._free_rows.append(running.row)
        self._blocked_at = -1
