"""Which tokens the next step computes.

One token budget per step pays for a token of every request that decodes, then for chunks of the prompts still
to be computed, then for new requests from the head of the queue, then for drafts.

When the block pool runs dry, a request takes the blocks of the one whose turn comes last. Whoever is first
can always go on. A lack of rows takes no one's blocks: beams may be more than the rows, and those without one
are parked.
"""

from collections.abc import Sequence
from typing import Final

from octavo.core.errors import OutOfBlocks
from octavo.core.request import Request
from octavo.paging.explain import PrefixExplanation
from octavo.paging.manager import KVManager
from octavo.paging.matching import PrefixMatch
from octavo.scheduling.admission import Admission
from octavo.scheduling.composing import Composition
from octavo.scheduling.drafting import Drafter
from octavo.scheduling.in_flight import InFlightPrefixes
from octavo.scheduling.preemption import Preemption, is_protected
from octavo.scheduling.running import Running, RunningSet
from octavo.scheduling.waiting import WaitingQueue

# Of so many requests, the latest ones, it is remembered why their cached prefix ended where it did.
MAX_EXPLAINED: Final = 4096

# Requests of the queue looked at in one step; some are passed over, waiting for a prefix that others compute.
MAX_LOOKED_AT: Final = 256


class Planner:
    """Shares tokens, rows and blocks out among those that run and those that wait.

    Args:
        max_step_tokens, max_chunk_tokens, drafter: see Scheduler.

    Attributes:
        preemption: how often someone had to give way.
        explanations: why a request's cached prefix ended where it did, by request id, the oldest first.
        admitted: requests that got their first blocks in the last step that was planned.
    """

    def __init__(
        self,
        kv: KVManager,
        waiting: WaitingQueue,
        running: RunningSet,
        *,
        admission: Admission,
        prefixes: InFlightPrefixes,
        drafter: Drafter | None,
        max_step_tokens: int,
        max_chunk_tokens: int | None,
    ) -> None:
        self.preemption = Preemption(running, waiting)
        self.explanations: dict[int, PrefixExplanation] = {}
        self.admitted: list[Request] = []
        self._kv = kv
        self._waiting = waiting
        self._running = running
        self._admission = admission
        self._prefixes = prefixes
        self._drafter = drafter
        self._max_step_tokens = max_step_tokens
        self._max_chunk_tokens = max_chunk_tokens
        self._blocked: tuple[Request, int] | None = None  # who did not fit, and among whom
        self._blocked_at = 0  # with how many free blocks

    def plan(self) -> Composition:
        """The next step, with blocks for all of it; there is work in it unless nobody is here."""
        self.admitted = []
        step = Composition()
        if self._running.has_parked:
            self._seat(step)
        if self._waiting.in_order:
            self._make_way(step)
        wanted, budget = self._share_out(step)
        self._grant(step, wanted)
        if self._waiting.in_order and not step.short_of_blocks:
            self._admit(step, budget)
        if not step.plan.work:
            self._insist(step)
        if self._running.closed_rows:
            step.plan.closed_rows += self._running.closed_rows
            self._running.closed_rows.clear()
        return step

    # Rows

    def _seat(self, step: Composition) -> None:
        """Give rows to parked requests that have something to compute.

        They get rows that are free or that belong to beams with nothing to compute. Only the very first takes
        one from a request that could use it itself, the last, so that it goes on whoever holds the rows.
        """
        busy = [r for r in self._running.in_order if r.num_pending]
        idle = [r for r in self._running.in_order if r.row is not None and not r.num_pending]
        for running in busy:
            if running.row is not None:
                continue
            if not self._running.has_free_row:
                if idle:
                    self._running.park(idle.pop())
                elif running is busy[0]:
                    self._running.park(next(r for r in reversed(busy) if r.row is not None))
                else:
                    return
            self._open_row(step, running)
            self._kv.retell(running.seq_id)

    def _open_row(self, step: Composition, running: Running) -> None:
        """Give ``running`` a free row; there must be one."""
        running.row = self._running.take_row()
        assert running.row is not None
        step.open_row(running.request, running.row)

    # Those that run

    def _share_out(self, step: Composition) -> tuple[list[tuple[Running, int]], int]:
        """Known tokens each running request should advance by, and what is left of the budget."""
        pending = [
            (r, count)
            for r in self._running.in_order
            if r.row is not None and (count := len(r.request.token_ids) - r.num_slots)
        ]
        for_decodes = min(self._max_step_tokens, sum([count == 1 for _, count in pending]))
        budget = self._max_step_tokens - for_decodes
        if for_decodes and self._max_chunk_tokens is not None:
            budget = min(budget, self._max_chunk_tokens)
        wanted = []
        for running, count in pending:
            if count > 1:
                count = step.most_tokens(running.request, count, budget)  # noqa: PLW2901
                budget -= count
            else:
                if for_decodes == 0:  # forks may be more than the budget: the first ones run first
                    continue
                for_decodes -= 1
            if count:
                wanted.append((running, count))
        if self._drafter is not None and budget > 0:
            budget -= self._propose(self._drafter, wanted, budget)
        return wanted, budget

    def _propose(self, drafter: Drafter, wanted: Sequence[tuple[Running, int]], budget: int) -> int:
        """Let running requests go on with guesses; returns the tokens that takes."""
        total = 0
        for running, count in wanted:
            request = running.request
            if count == running.num_pending and not request.num_candidates:
                room = min(budget - total, request.max_len - len(request.token_ids) - 1)
                drafts = drafter.propose(request, room) if room > 0 and not request.is_scored else []
                if drafts:
                    self._kv.append_tokens(running.seq_id, drafts)
                    running.drafts = drafts
                    total += len(drafts)
        return total

    def _drop_drafts(self, running: Running) -> None:
        if running.drafts:
            running.drafts = []
            self._kv.truncate(running.seq_id, len(running.request.token_ids))

    def _grant(self, step: Composition, wanted: Sequence[tuple[Running, int]]) -> None:
        """Take slots for what running requests want, all of it at once if the pool allows."""
        kv = self._kv
        try:
            grant = kv.commit_step([(r.seq_id, count + len(r.drafts)) for r, count in wanted])
        except OutOfBlocks:
            for running in self._running.in_order:
                self._drop_drafts(running)
                kv.leave_window(running.seq_id)
            for running, count in wanted:
                if self._running.find(running.request) is running:  # not preempted for another's sake
                    self._advance(step, running, count)
            return
        for running, count in wanted:
            updates = grant.block_updates.get(running.seq_id)
            if updates:
                step.update_table(running, updates)
            self._compute(step, running, count)
        step.plan.copies += grant.copies

    def _advance(self, step: Composition, running: Running, count: int) -> None:
        """Take slots for up to ``count`` tokens and plan them, preempting later requests if need be."""
        slots = self._admission.fit(running, count)
        while slots is None:
            step.short_of_blocks = True
            victim = self.preemption.victim_for(running)
            if victim is None:
                return  # it waits where it is: others finish, or take its blocks when they need them
            self._preempt(step, victim)
            slots = self._admission.fit(running, count)
        grant = self._kv.commit(slots)
        step.update_table(running, grant.block_updates)
        step.plan.copies.extend(grant.copies)
        self._compute(step, running, slots.num_tokens)

    def _compute(self, step: Composition, running: Running, count: int) -> None:
        """Plan the next ``count`` known tokens, and the samples that begin behind the last of them."""
        step.compute(running, count)
        forks = running.request.forks
        if forks and not running.num_pending and not running.request.beam_width:
            opened = []
            for fork in forks:
                row = self._running.take_row()
                if row is None:
                    self._waiting.add(fork)  # it finds the prompt's blocks by name
                else:
                    opened.append((fork, row))
            forks.clear()
            step.add_forks(opened)

    # Those that wait

    def _admit(self, step: Composition, budget: int) -> None:
        """Start requests from the head of the queue while tokens, rows and blocks last.

        None starts before all that run got their share. So only the latest can be in the middle of its
        prompt, no more run than the budget has tokens, and no prompt waits behind decodes for ever. Those
        that wait for a prefix in progress are passed over.
        """
        for request in self._waiting.in_order[:MAX_LOOKED_AT]:
            if budget <= 0 or not self._running.has_free_row or step.short_of_blocks:
                return
            if self._prefixes.still_awaits(request):
                continue
            if self._is_blocked(request):
                return
            match = self._running.match(request)
            if self._running.in_order and self._prefixes.awaits(request, match):
                continue
            if not self._fits(request, match):
                return
            count = step.most_tokens(request, len(request.token_ids) - match.num_tokens, budget)
            if count == 0:
                return
            running = self._start(step, request, match)
            self._advance(step, running, count)
            budget -= running.num_slots - match.num_tokens

    def _fits(self, request: Request, match: PrefixMatch) -> bool:
        """Whether a request may start beside those that run. Alone it always may."""
        num_free = self._kv.num_free_blocks
        if not self._running.in_order or self._admission.blocks_spoken_for(request, match) <= num_free:
            return True
        self._blocked = request, self._running.num_changes
        self._blocked_at = num_free
        return False

    def _is_blocked(self, request: Request) -> bool:
        """Whether it is known not to fit: nobody came or went since, and nothing came free. Cheap."""
        is_as_before = self._blocked == (request, self._running.num_changes)
        return is_as_before and self._kv.num_free_blocks <= self._blocked_at

    def _start(self, step: Composition, request: Request, match: PrefixMatch) -> Running:
        """Let the queue's ``request`` run, on a free row."""
        self._waiting.remove(request)
        self._prefixes.forget(request)
        running = self._running.start(request, match)
        if not request.num_preemptions:
            request.num_cached_tokens = match.num_tokens
            self.admitted.append(request)
            self.explanations[request.request_id] = self._kv.explain(running.seq_id)
            if len(self.explanations) > MAX_EXPLAINED:
                del self.explanations[next(iter(self.explanations))]
        self._open_row(step, running)
        return running

    # Giving way

    def _make_way(self, step: Composition) -> None:
        """Preempt less urgent requests while a more urgent one at the head of the queue does not fit."""
        head = self._waiting.in_order[0]
        while self._running.in_order:
            victim = self._running.in_order[-1]
            if (
                victim.request.priority <= head.priority
                or victim.request.turn < head.turn
                or is_protected(victim.request)
                or self._prefixes.still_awaits(head)
            ):
                return
            if (
                self._running.has_free_row
                and not self._is_blocked(head)
                and self._fits(head, self._running.match(head))
            ):
                return
            self._preempt(step, victim)

    def _insist(self, step: Composition) -> None:
        """Let the first go on when no one could, over those that should not be preempted again.

        By the accounts that admission keeps it never comes to this; a mistake in them costs a preemption too
        many and not an engine that stands still.
        """
        first = next((r for r in self._running.in_order if r.num_pending), None)
        while first is not None and not step.plan.work:
            victim = self.preemption.victim_for(first, at_any_price=True)
            if victim is None:
                free = self._kv.num_free_blocks
                raise OutOfBlocks(needed=1, free=free, evictable=0, hint="no one to preempt")
            self._preempt(step, victim)
            self._advance(step, first, 1)

    def _preempt(self, step: Composition, victim: Running) -> None:
        for running in self._running.group(victim):
            step.forget_row(running.row)
        self.preemption.preempt(victim)
