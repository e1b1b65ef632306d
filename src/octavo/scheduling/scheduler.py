"""Which tokens the next step computes: pure policy over requests, block ids and rows.

A request is computed tokens catching up with known tokens, so prefill, decode and resuming after a preemption
are one thing. One token budget per step pays for a token of every request that decodes, then for chunks of
the prompts still to be computed, then for new requests from the head of the queue, then for drafts.

When the block pool runs dry, a request takes the blocks of the one whose turn comes last: that one loses its
row and its sequence but keeps its tokens, and goes back to the queue. Its full blocks keep their names, so
resuming finds again whatever was not overwritten meanwhile. Beams of one search wait for one another at each
token, so they lose their blocks together and come back together. Whoever is first can always go on.

A lack of rows takes no one's blocks. Beams may be more than there are rows; those without one are parked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from octavo.core.config import Scheduling
from octavo.core.errors import OutOfBlocks
from octavo.core.request import FinishReason, Request
from octavo.paging.explain import PrefixExplanation
from octavo.paging.invariants import BrokenInvariant
from octavo.paging.manager import KVManager
from octavo.paging.matching import PrefixMatch
from octavo.scheduling.admission import Admission
from octavo.scheduling.composing import Composition, is_scored
from octavo.scheduling.drafting import Drafter
from octavo.scheduling.in_flight import InFlightPrefixes
from octavo.scheduling.outcome import take_chosen, take_scores
from octavo.scheduling.running import Running, RunningSet
from octavo.scheduling.step import RowWork, StepPlan, StepResult
from octavo.scheduling.waiting import WaitingQueue

# Of so many requests, the latest ones, it is remembered why their cached prefix ended where it did.
MAX_EXPLAINED: Final = 4096

# Requests of the queue looked at in one step; some are passed over, waiting for a prefix that others compute.
MAX_LOOKED_AT: Final = 256


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Where the sequences are, how often one had to give way, and the most that was ever held.

    Attributes:
        num_running: those that hold blocks, parked ones too.
        num_waiting: those that hold none; each sample of a prompt counts.
        peak_blocks, peak_shared_blocks: blocks held, and held by several requests, in any step so far.
        num_drafts, num_drafts_accepted: tokens guessed ahead, and those of them that were right.
    """

    num_running: int
    num_waiting: int
    num_preemptions: int
    num_steps: int
    peak_blocks: int
    peak_shared_blocks: int
    num_drafts: int
    num_drafts_accepted: int


class Scheduler:
    """A step is ``schedule()``, the plan carried out elsewhere, ``commit()``.

    Args:
        max_num_seqs: rows.
        max_step_tokens: budget of a step.
        max_chunk_tokens: what of it may go to prompts and drafts while others decode, or None for all. The
            fewer, the shorter the gap between two tokens of those, and the later a prompt's first token.
        policy: whose turn it is: "fcfs" or "priority".
        max_waiting: sequences that may wait, or None; see WaitingQueue.
        drafter: guesses tokens ahead, or None.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        max_num_seqs: int,
        max_step_tokens: int,
        max_chunk_tokens: int | None = None,
        policy: Scheduling = "fcfs",
        max_waiting: int | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.kv = kv
        self.max_step_tokens = max_step_tokens
        self._max_chunk_tokens = max_chunk_tokens
        self._waiting = WaitingQueue(policy, max_waiting)
        self._running = RunningSet(max_num_seqs)
        self._admission = Admission(kv, self._running)
        self._prefixes = InFlightPrefixes(max(spec.block_size for spec in kv.groups))
        self._drafter = drafter
        self._closed_rows: list[int] = []  # since the last step
        self._step: Composition | None = None
        self._blocked_at = -1  # free blocks when the head of the queue last did not fit
        self._explanations: dict[int, PrefixExplanation] = {}  # by request id, oldest first
        self._num_preemptions = 0
        self._num_steps = 0
        self._peak_blocks = 0
        self._peak_shared_blocks = 0
        self._num_drafts = 0
        self._num_drafts_accepted = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(len(self._running) or len(self._waiting))

    def stats(self) -> SchedulerStats:
        """Counts at this moment."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=self._waiting.num_sequences,
            num_preemptions=self._num_preemptions,
            num_steps=self._num_steps,
            peak_blocks=self._peak_blocks,
            peak_shared_blocks=self._peak_shared_blocks,
            num_drafts=self._num_drafts,
            num_drafts_accepted=self._num_drafts_accepted,
        )

    def explain(self, request_id: int) -> PrefixExplanation | None:
        """Why a request's cached prefix ended where it did when it was first admitted.

        None if it has not started yet, or if so many came after it that it is forgotten.
        """
        return self._explanations.get(request_id)

    def held_blocks(self) -> dict[int, list[int]]:
        """Block ids of each running request, by request id; a shared block appears under each."""
        return {
            running.request.request_id: [
                b for table in self.kv.block_tables(running.seq_id) for b in table if b
            ]
            for running in self._running
        }

    # Requests

    def add(self, request: Request) -> None:
        """Queue a request, with the forks that it may have.

        Raises:
            InvalidRequest: it could never run, even alone: the pool has fewer blocks than it may need.
            QueueFull: too many wait.
        """
        self._admission.check_fits(request)
        self._waiting.check_room(request)
        request.turn = self._waiting.turn_of(request, self._num_steps)
        for number, fork in enumerate(request.forks, 1):
            fork.turn = request.turn._replace(part=number)
        self._waiting.add(request)

    def fork(self, parent: Request, child: Request) -> None:
        """Between steps: ``child`` goes on from all that ``parent`` knows, sharing its blocks.

        The child's tokens begin with those of the parent, and go on.

        Raises:
            ValueError: the parent's candidates have not come.
        """
        self._start_fork(self._ready(parent), child, None, num_shared=len(parent.token_ids))

    def extend(self, request: Request, token_id: int) -> None:
        """Between steps: a token that was chosen elsewhere goes behind all known ones.

        Raises:
            ValueError: the request's candidates have not come.
        """
        running = self._ready(request)
        request.token_ids.append(token_id)
        self.kv.append_tokens(running.seq_id, (token_id,))

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Between steps: end a request, wherever it is, and let its blocks go."""
        self._check_between_steps()
        running = self._running.find(request)
        if running is not None:
            self._leave(running)
        elif request in self._waiting:
            self._waiting.remove(request)
            self._prefixes.forget(request)
            self._blocked_at = -1
        else:
            for leader in (*self._waiting, *(r.request for r in self._running)):
                if request in leader.forks:
                    leader.forks.remove(request)
                    break
            else:
                raise ValueError(f"request {request.request_id} is not here")
        for fork in request.forks:  # they never began, and now nobody computes the prompt for them
            self._waiting.add(fork)
        request.forks.clear()
        request.finish_reason = reason

    # One step

    def schedule(self) -> StepPlan:
        """Choose the next step's work and take blocks for it; there is work unless all wait for tokens."""
        self._check_between_steps()
        self._step = step = Composition()
        self._num_steps += 1
        plan = step.plan
        if self._running.has_parked:
            self._seat()
        self._make_way()
        wanted, budget = self._share_out()
        self._grant(wanted)
        if len(self._waiting) and not step.short_of_blocks:
            budget = self._admit(budget)
        if not plan.work:
            self._insist()
        plan.closed_rows.extend(self._closed_rows)
        self._closed_rows.clear()
        pool = self.kv.pool
        self._peak_blocks = max(self._peak_blocks, pool.num_blocks - 1 - pool.num_available)
        self._peak_shared_blocks = max(self._peak_shared_blocks, pool.num_shared)
        return plan

    def commit(self, result: StepResult) -> list[Request]:
        """Record what the step computed.

        Returns:
            The requests that got tokens, candidates or an error, in work order, forks behind their leaders.
        """
        step = self._step
        if step is None:
            raise RuntimeError("commit() called without schedule()")
        self._step = None
        if step.plan.copies:
            self.kv.complete_copies(step.plan.copies)
        advanced: list[Request] = []
        progress: list[tuple[int, int, int | None]] = []
        leaving: list[Running] = []
        returning: list[Request] = []
        at = 0  # in result.token_ids
        for index, (running, work) in enumerate(zip(step.owners, step.plan.work, strict=True)):
            request = running.request
            num_written, token_id = len(work.token_ids) - work.num_drafts, None
            if work.score:
                take_scores(request, work, result.prompt_logprobs.get(index, []))
            if work.sample:
                advanced.append(request)
                chosen = range(at, at + 1 + work.num_drafts)
                num_right, token_id = take_chosen(request, work, chosen, result)
                num_written += num_right
                at += work.num_chosen
                if request.finish_reason is not None:
                    leaving.append(running)
                elif request.forks:
                    returning += request.forks
                    request.forks.clear()
                self._prefixes.stop(request)
                if work.num_drafts:
                    self._settle_drafts(running, work, num_right)
            running.num_slots = request.num_computed = work.start + num_written
            if work.sample and request.error is not None:  # its KV is not to be trusted: it is not published
                continue
            progress.append((running.seq_id, num_written, token_id))
        self.kv.advance_step(progress)
        if step.forks:
            advanced = self._begin_forks(step, result, advanced)
        for beam in returning:
            self._resume(beam, self._match(beam))
        for running in leaving:
            self._leave(running)
        return advanced

    def close(self) -> None:
        """Nothing more will come."""

    def check_invariants(self) -> None:
        """Raise BrokenInvariant if rows, requests and blocks do not add up. Slow."""
        self._running.check()
        num_held = self.kv.pool.num_blocks - 1 - self.kv.num_free_blocks
        if num_held and not len(self._running):
            raise BrokenInvariant(f"{num_held} blocks are held though nothing runs")
        self.kv.check_invariants()

    # Refusing

    def _check_between_steps(self) -> None:
        if self._step is not None:
            raise RuntimeError("not possible between schedule() and commit()")

    def _ready(self, request: Request) -> Running:
        """Between steps: who runs for ``request`` and has computed all that it knows."""
        self._check_between_steps()
        running = self._running.find(request)
        if running is None or running.num_pending:
            raise ValueError(f"request {request.request_id} has tokens that are not computed")
        return running

    # Planning

    def _seat(self) -> None:
        """Give rows to parked requests that have something to compute.

        They get rows that are free or that belong to beams with nothing to compute. Only the very first takes
        one from a request that could use it itself, the last, so that it goes on whoever holds the rows.
        """
        busy = [r for r in self._running if r.num_pending]
        idle = [r for r in self._running if r.row is not None and not r.num_pending]
        for running in busy:
            if running.row is not None:
                continue
            if not self._running.has_free_row:
                if idle:
                    self._park(idle.pop())
                elif running is busy[0]:
                    self._park(next(r for r in reversed(busy) if r.row is not None))
                else:
                    return
            self._open_row(running)
            self.kv.retell(running.seq_id)

    def _park(self, running: Running) -> None:
        assert running.row is not None
        self._running.give_row(running.row)
        self._closed_rows.append(running.row)
        running.row = None

    def _open_row(self, running: Running) -> None:
        """Give ``running`` a free row; there must be one."""
        assert self._step is not None
        running.row = self._running.take_row()
        assert running.row is not None
        self._step.open_row(running.request, running.row)

    def _share_out(self) -> tuple[list[tuple[Running, int]], int]:
        """Known tokens each running request should advance by, and what is left of the budget."""
        assert self._step is not None
        pending = [(r, r.num_pending) for r in self._running if r.row is not None]
        for_decodes = min(self.max_step_tokens, sum(1 for _, count in pending if count == 1))
        budget = self.max_step_tokens - for_decodes
        if for_decodes and self._max_chunk_tokens is not None:
            budget = min(budget, self._max_chunk_tokens)
        wanted = []
        for running, count in pending:
            if count > 1:
                count = self._step.most_tokens(running.request, count, budget)  # noqa: PLW2901
                budget -= count
            elif count == 1:
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
                drafts = drafter.propose(request, room) if room > 0 and not is_scored(request) else []
                if drafts:
                    self.kv.append_tokens(running.seq_id, drafts)
                    running.drafts = drafts
                    total += len(drafts)
        return total

    def _compute(self, running: Running, count: int) -> None:
        """Plan the next ``count`` known tokens, and the forks that begin behind the last of them."""
        assert self._step is not None
        self._step.compute(running, count)
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
            self._step.add_forks(opened)

    def _grant(self, wanted: Sequence[tuple[Running, int]]) -> None:
        """Take slots for what running requests want, all of it at once if the pool allows."""
        assert self._step is not None
        plan, kv = self._step.plan, self.kv
        try:
            grant = kv.commit_step([(r.seq_id, count + len(r.drafts)) for r, count in wanted])
        except OutOfBlocks:
            for running in self._running:
                self._drop_drafts(running)
                kv.leave_window(running.seq_id)
            for running, count in wanted:
                if running in self._running:  # not preempted for the sake of another
                    self._advance(running, count)
            return
        for running, count in wanted:
            updates = grant.block_updates.get(running.seq_id)
            if updates:
                self._step.update_table(running, updates)
            self._compute(running, count)
        plan.copies.extend(grant.copies)

    def _advance(self, running: Running, count: int) -> None:
        """Take slots for up to ``count`` tokens and plan them, preempting later requests if need be."""
        assert self._step is not None
        slots = self._admission.fit(running, count)
        while slots is None:
            self._step.short_of_blocks = True
            victim = self._victim(running)
            if victim is None:
                return  # it waits where it is: others finish, or take its blocks when they need them
            self._preempt(victim)
            slots = self._admission.fit(running, count)
        grant = self.kv.commit(slots)
        self._step.update_table(running, grant.block_updates)
        self._step.plan.copies.extend(grant.copies)
        self._compute(running, slots.num_tokens)

    # Admitting

    def _admit(self, budget: int) -> int:
        """Start requests from the head of the queue while tokens, rows and blocks last.

        None starts before all that run got their share. So only the latest can be in the middle of its
        prompt, no more run than the budget has tokens, and no prompt waits behind decodes for ever. Those
        that wait for a prefix in progress are passed over.
        """
        assert self._step is not None
        kv = self.kv
        for request in self._waiting.first(MAX_LOOKED_AT):
            if budget <= 0 or not self._running.has_free_row or self._step.short_of_blocks:
                break
            if self._prefixes.still_awaits(request):
                continue
            num_free = kv.num_free_blocks
            if len(self._running) and num_free <= self._blocked_at:
                break  # nothing came free since it last did not fit
            match = self._match(request)
            if len(self._running):
                if self._prefixes.awaits(request, match):
                    continue
                if self._admission.blocks_spoken_for(request, match) > num_free:
                    self._blocked_at = num_free
                    break
            num_pending = len(request.token_ids) - match.num_tokens
            count = self._step.most_tokens(request, num_pending, budget)
            if count == 0:
                break
            running = self._start(request, match)
            self._advance(running, count)
            budget -= running.num_slots - match.num_tokens
        return budget

    def _match(self, request: Request) -> PrefixMatch:
        """What the cache has of a request; nothing if the logits of its prompt are wanted."""
        limit = len(request.prompt_logprobs) if is_scored(request) else None
        return self.kv.match(request.token_ids, salt=request.salt, limit=limit)

    def _start(self, request: Request, match: PrefixMatch) -> Running:
        """Let the queue's ``request`` run, on a free row."""
        self._waiting.remove(request)
        self._prefixes.forget(request)
        self._blocked_at = -1
        running = self._resume(request, match)
        self._open_row(running)
        return running

    def _resume(self, request: Request, match: PrefixMatch) -> Running:
        """Give ``request`` a sequence with the blocks of its match, and no row yet."""
        request.num_computed = match.num_tokens
        if self.kv.matcher.enabled:
            self._prefixes.start(request, match)
        seq_id = self.kv.create_sequence(request.token_ids, salt=request.salt, match=match)
        if not request.num_preemptions:
            request.num_cached_tokens = match.num_tokens
            self._explanations[request.request_id] = self.kv.explain(seq_id)
            if len(self._explanations) > MAX_EXPLAINED:
                del self._explanations[next(iter(self._explanations))]
        running = Running(request, seq_id, match.num_tokens)
        self._running.add(running)
        return running

    # Giving way

    def _make_way(self) -> None:
        """Preempt less urgent requests while a more urgent one at the head of the queue does not fit."""
        head = self._waiting.head
        while head is not None and len(self._running):
            victim = self._running.last
            if (
                victim.request.priority <= head.priority
                or victim.request.turn < head.turn
                or self._admission.is_protected(victim.request)
                or self._prefixes.still_awaits(head)
            ):
                return
            if self._running.has_free_row:
                num_free = self.kv.num_free_blocks
                if num_free <= self._blocked_at:
                    pass
                elif self._admission.blocks_spoken_for(head, self._match(head)) <= num_free:
                    return
            self._preempt(victim)

    def _victim(self, needy: Running) -> Running | None:
        """The last that may give way to ``needy``: whose turn is later, and whose work is not planned yet.

        Beams do not give way to others of their search, which could not go on without them.
        """
        together = self._running.group(needy)
        for running in reversed(self._running):
            if running in together:
                return None
            if self._admission.is_protected(running.request):
                continue
            if not any(r.is_planned for r in self._running.group(running)):
                return running
        return None

    def _insist(self) -> None:
        """Let the first go on when no one could, over those that should not be preempted again.

        By the accounts that admission keeps it never comes to this; a mistake in them costs a preemption too
        many and not an engine that stands still.
        """
        assert self._step is not None
        first = next((r for r in self._running if r.num_pending), None)
        while first is not None and not self._step.plan.work:
            together = self._running.group(first)
            victim = next((r for r in reversed(self._running) if r not in together), None)
            if victim is None:
                raise OutOfBlocks(
                    needed=1, free=self.kv.num_free_blocks, evictable=0, hint="no one to preempt"
                )
            self._preempt(victim)
            self._advance(first, 1)

    def _preempt(self, running: Running) -> None:
        """Take the blocks of a request, or of all beams of a search, which wait in the queue as one."""
        group = self._running.group(running)
        for member in group:
            self._leave(member)
            member.request.num_computed = 0
            member.request.candidates = None  # they come again with the last token's KV
        first = group[0].request
        first.forks += [member.request for member in group[1:]]
        for request in [first, *first.forks] if first.beam_width else [first]:
            request.num_preemptions += 1
        self._num_preemptions += 1
        self._waiting.add(first)

    def _leave(self, running: Running) -> None:
        self._running.remove(running)
        self._prefixes.stop(running.request)
        if self._drafter is not None:
            self._drafter.forget(running.request)
        self.kv.release_sequence(running.seq_id)
        if running.row is not None:
            self._closed_rows.append(running.row)
        self._blocked_at = -1

    # Recording

    def _settle_drafts(self, running: Running, work: RowWork, num_right: int) -> None:
        """Count the drafts, and forget the wrong ones."""
        request = running.request
        request.num_drafts += work.num_drafts
        request.num_drafts_accepted += num_right
        self._num_drafts += work.num_drafts
        self._num_drafts_accepted += num_right
        if num_right < work.num_drafts:
            self.kv.truncate(running.seq_id, work.start + len(work.token_ids) - work.num_drafts + num_right)

    def _drop_drafts(self, running: Running) -> None:
        if running.drafts:
            running.drafts = []
            self.kv.truncate(running.seq_id, len(running.request.token_ids))

    def _begin_forks(self, step: Composition, result: StepResult, advanced: list[Request]) -> list[Request]:
        """Start the forks whose first tokens were chosen in this step; ``advanced`` with them in it."""
        forks_of: dict[Request, list[Request]] = {}
        at = 0
        for index, work in enumerate(step.plan.work):
            first = at + 1 + work.num_drafts
            at += work.num_chosen
            if index not in step.forks:
                continue
            leader = step.owners[index]
            num_shared = work.start + len(work.token_ids) - work.num_drafts
            for i, (fork, row) in enumerate(step.forks[index], first):
                forks_of.setdefault(leader.request, []).append(fork)
                take_chosen(fork, work, range(i, i + 1), result)
                if fork.finish_reason is None:
                    self._start_fork(leader, fork, row, num_shared=num_shared)
                else:
                    self._running.give_row(row)
                    self._closed_rows.append(row)
        return [r for request in advanced for r in (request, *forks_of.get(request, ()))]

    def _start_fork(self, running: Running, fork: Request, row: int | None, *, num_shared: int) -> None:
        """``fork`` runs on the first ``num_shared`` tokens of another's sequence, then its own."""
        seq_id = self.kv.fork(running.seq_id)
        self.kv.truncate(seq_id, num_shared)
        self.kv.append_tokens(seq_id, fork.token_ids[num_shared:])
        fork.num_computed = num_shared
        self._running.add(Running(fork, seq_id, num_shared, row))
