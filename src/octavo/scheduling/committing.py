"""What a step computed is written down: tokens, computed blocks, sequences that begin, requests that end."""

from octavo.core.request import Request
from octavo.paging.manager import KVManager
from octavo.scheduling.composing import Composition
from octavo.scheduling.in_flight import InFlightPrefixes
from octavo.scheduling.outcome import take_chosen, take_scores
from octavo.scheduling.running import Running, RunningSet
from octavo.scheduling.step import RowWork, StepResult


class Committer:
    """Takes steps' results in.

    Attributes:
        num_drafts, num_drafts_accepted: tokens guessed ahead, and those of them that were right.
    """

    def __init__(self, kv: KVManager, running: RunningSet, prefixes: InFlightPrefixes) -> None:
        self.num_drafts = 0
        self.num_drafts_accepted = 0
        self._kv = kv
        self._running = running
        self._prefixes = prefixes

    def commit(self, step: Composition, result: StepResult) -> list[Request]:
        """See Scheduler.commit."""
        if step.plan.copies:
            self._kv.complete_copies(step.plan.copies)
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
                    for beam in request.forks:  # they hold nothing yet, and cannot go on without it
                        beam.finish_reason = request.finish_reason
                    request.forks.clear()
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
        self._kv.advance_step(progress)
        if step.forks:
            advanced = self._begin_forks(step, result, advanced)
        for beam in returning:
            self._running.start(beam, self._running.match(beam))
        for running in leaving:
            self._running.leave(running)
        return advanced

    def _settle_drafts(self, running: Running, work: RowWork, num_right: int) -> None:
        """Count the drafts, and forget the wrong ones."""
        request = running.request
        request.num_drafts += work.num_drafts
        request.num_drafts_accepted += num_right
        self.num_drafts += work.num_drafts
        self.num_drafts_accepted += num_right
        if num_right < work.num_drafts:
            self._kv.truncate(running.seq_id, work.start + len(work.token_ids) - work.num_drafts + num_right)

    def _begin_forks(self, step: Composition, result: StepResult, advanced: list[Request]) -> list[Request]:
        """Start the samples whose first tokens were chosen in this step; ``advanced`` with them in it."""
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
                    self._running.fork(leader, fork, num_shared, row=row)
                else:
                    self._running.give_row(row)
        return [r for request in advanced for r in (request, *forks_of.get(request, ()))]
