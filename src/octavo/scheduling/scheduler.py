"""Who runs when: pure policy over requests, block ids and rows.

A request is computed tokens catching up with known tokens, so prefill, decode and resuming after a preemption
are one thing. ``planning`` chooses what a step computes, ``committing`` takes in what came of it.
"""

from dataclasses import dataclass

from octavo.core.config import Scheduling
from octavo.core.request import FinishReason, Request
from octavo.paging.explain import PrefixExplanation
from octavo.paging.manager import KVManager
from octavo.scheduling.admission import Admission
from octavo.scheduling.committing import Committer
from octavo.scheduling.composing import Composition
from octavo.scheduling.drafting import Drafter
from octavo.scheduling.in_flight import InFlightPrefixes
from octavo.scheduling.planning import Planner
from octavo.scheduling.running import Running, RunningSet
from octavo.scheduling.step import StepPlan, StepResult
from octavo.scheduling.waiting import WaitingQueue


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
        self._prefixes = InFlightPrefixes(max(spec.block_size for spec in kv.groups))
        self._waiting = WaitingQueue(policy, max_waiting)
        self._running = RunningSet(kv, max_num_seqs, prefixes=self._prefixes, drafter=drafter)
        self._admission = Admission(kv, self._running)
        self._planner = Planner(
            kv,
            self._waiting,
            self._running,
            admission=self._admission,
            prefixes=self._prefixes,
            drafter=drafter,
            max_step_tokens=max_step_tokens,
            max_chunk_tokens=max_chunk_tokens,
        )
        self._committer = Committer(kv, self._running, self._prefixes)
        self._step: Composition | None = None  # between schedule() and commit()
        self._num_steps = 0
        self._peak_blocks = 0
        self._peak_shared_blocks = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._running.in_order or self._waiting.in_order)

    def stats(self) -> SchedulerStats:
        """Counts at this moment."""
        return SchedulerStats(
            num_running=len(self._running.in_order),
            num_waiting=self._waiting.num_sequences,
            num_preemptions=self._planner.preemption.num_preemptions,
            num_steps=self._num_steps,
            peak_blocks=self._peak_blocks,
            peak_shared_blocks=self._peak_shared_blocks,
            num_drafts=self._committer.num_drafts,
            num_drafts_accepted=self._committer.num_drafts_accepted,
        )

    @property
    def running(self) -> list[Running]:
        """Who holds blocks, in the order of turns; to be read only."""
        return self._running.in_order

    @property
    def waiting(self) -> list[Request]:
        """Who waits, in the order of turns, forks with their leaders; to be read only."""
        return self._waiting.in_order

    @property
    def admitted(self) -> list[Request]:
        """Requests that got their first blocks in the last step that was planned."""
        return self._planner.admitted

    def explain(self, request_id: int) -> PrefixExplanation | None:
        """Why a request's cached prefix ended where it did when it was first admitted.

        None if it has not started yet, or if so many came after it that it is forgotten.
        """
        return self._planner.explanations.get(request_id)

    def held_blocks(self) -> dict[int, list[int]]:
        """Block ids of each running request, by request id; a shared block appears under each."""
        return {
            running.request.request_id: [
                b for table in self.kv.block_tables(running.seq_id) for b in table if b
            ]
            for running in self._running.in_order
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
        self._running.fork(self._ready(parent), child, len(parent.token_ids))

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
            self._running.leave(running)
        elif request in self._waiting.in_order:
            self._waiting.remove(request)
            self._prefixes.forget(request)
        else:
            for leader in (*self._waiting.in_order, *(r.request for r in self._running.in_order)):
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
        """Choose the next step's work and take blocks for it."""
        self._check_between_steps()
        self._num_steps += 1
        self._step = step = self._planner.plan()
        pool = self.kv.pool
        self._peak_blocks = max(self._peak_blocks, pool.num_blocks - 1 - pool.num_available)
        self._peak_shared_blocks = max(self._peak_shared_blocks, pool.num_shared)
        return step.plan

    def commit(self, result: StepResult) -> list[Request]:
        """Record what the step computed.

        Returns:
            The requests that got tokens, candidates or an error, in work order, forks behind their leaders.
        """
        step = self._step
        if step is None:
            raise RuntimeError("commit() called without schedule()")
        self._step = None
        return self._committer.commit(step, result)

    def close(self) -> None:
        """Nothing more will come."""

    def check_invariants(self) -> None:
        """Raise BrokenInvariant if rows, requests and blocks do not add up. Slow."""
        self._running.check()
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
