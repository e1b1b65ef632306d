"""A step's plan while it is made."""

from collections.abc import Iterable
from typing import Final

from octavo.core.request import Request
from octavo.paging.grants import TableUpdate
from octavo.scheduling.running import Running
from octavo.scheduling.step import BlockUpdate, RowOpen, RowWork, StepPlan

# Tokens of one step whose logits are kept to say how likely a prompt was: each takes a vocabulary of floats.
MAX_SCORED_TOKENS: Final = 64


class Composition:
    """The plan, and what the scheduler has to know of it when the result comes.

    Attributes:
        owners: who each of the plan's works is for.
        forks: the forks that a work opened rows for, by its index in the plan.
        short_of_blocks: whether too few were found.
    """

    __slots__ = ("_num_scored", "forks", "owners", "plan", "short_of_blocks")

    def __init__(self) -> None:
        self.plan = StepPlan()
        self.owners: list[Running] = []
        self.forks: dict[int, list[tuple[Request, int]]] = {}
        self.short_of_blocks = False
        self._num_scored = 0

    def most_tokens(self, request: Request, num_pending: int, budget: int) -> int:
        """Tokens of ``request`` that the budget pays for; few of a prompt whose logits are wanted."""
        count = min(num_pending, budget)
        if request.is_scored:
            count = min(count, MAX_SCORED_TOKENS - self._num_scored)
            self._num_scored += count
        return count

    def update_table(self, running: Running, updates: Iterable[TableUpdate]) -> None:
        """Entries of a row's block tables that changed."""
        row = running.row
        assert row is not None
        self.plan.block_updates.extend(BlockUpdate(row, *update) for update in updates)

    def open_row(self, request: Request, row: int) -> None:
        """``request`` has this row from now on."""
        self.plan.opened_rows.append(
            RowOpen(
                row,
                request.params,
                request.seed,
                request.sample_index,
                tuple(request.token_ids[: request.prompt_len]),
                tuple(request.token_ids[request.prompt_len :]),
                request.grammar,
                request.num_candidates,
            )
        )

    def forget_row(self, row: int | None) -> None:
        """Whoever this step opened ``row`` for does not need it."""
        opened = self.plan.opened_rows
        opened[:] = [o for o in opened if o.row != row]

    def compute(self, running: Running, count: int) -> None:
        """``running`` advances by ``count`` known tokens, for which it has slots, and by its drafts."""
        request, start, row = running.request, running.num_slots, running.row
        assert row is not None
        running.num_slots = end = start + count
        is_last = end == len(request.token_ids)
        work = RowWork(row, start, request.token_ids[start:end], is_last)
        plan = self.plan
        if count > 1 or not is_last:
            plan.is_plain = False
        if running.drafts:
            work = work._replace(token_ids=work.token_ids + running.drafts, num_drafts=len(running.drafts))
            running.drafts = []
            plan.is_plain = False
        if start < request.prompt_len and request.is_scored:
            next_token_id = request.token_ids[end] if end < request.prompt_len else None
            work = work._replace(score=True, next_token_id=next_token_id)
            plan.is_plain = False
        plan.work.append(work)
        plan.num_tokens += len(work.token_ids)
        self.owners.append(running)

    def add_forks(self, forks: list[tuple[Request, int]]) -> None:
        """These choose their first tokens where the work added last does, on rows of their own."""
        for fork, row in forks:
            self.open_row(fork, row)
        index = len(self.plan.work) - 1
        self.forks[index] = forks
        self.plan.is_plain = False
        self.plan.work[index] = self.plan.work[index]._replace(forks=tuple(row for _, row in forks))
