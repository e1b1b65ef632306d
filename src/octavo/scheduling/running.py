"""Who runs: requests that hold blocks, in the order of their turns, and the rows that most of them have.

A row is a place in a step, a sequence is blocks. What is computed needs both. A request that has its blocks
but no row is *parked*: it costs no time, and nothing is lost when it gets a row again.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.core.request import Request, Turn
from octavo.paging.invariants import BrokenInvariant


@dataclass(slots=True, eq=False)
class Running:
    """A request that holds a sequence, and a row unless it is parked.

    Attributes:
        num_slots: tokens that have slots, and whose KV is computed after this step at the latest.
        drafts: guesses at the tokens behind the known ones, while a step is planned.
    """

    request: Request
    seq_id: int
    num_slots: int
    row: int | None = None
    drafts: list[int] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        """Known tokens that have no slots yet. Of a beam that waits for the others of its search it is 0."""
        return len(self.request.token_ids) - self.num_slots

    @property
    def is_planned(self) -> bool:
        """Whether the step being planned computes any of it."""
        return self.num_slots > self.request.num_computed


class RunningSet:
    """Who runs, and rows 0 .. num_rows - 1. Iteration is in the order of turns."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._free_rows = list(reversed(range(num_rows)))
        self._in_order: list[Running] = []
        self._of: dict[Request, Running] = {}

    def __len__(self) -> int:
        return len(self._in_order)

    def __iter__(self) -> Iterator[Running]:
        return iter(self._in_order)

    def __reversed__(self) -> Iterator[Running]:
        return reversed(self._in_order)

    def __contains__(self, running: Running) -> bool:
        return self._of.get(running.request) is running

    def find(self, request: Request) -> Running | None:
        """Who runs for ``request``, or None."""
        return self._of.get(request)

    @property
    def last(self) -> Running:
        """The one whose turn comes last; there must be one."""
        return self._in_order[-1]

    def group(self, running: Running) -> list[Running]:
        """Those that can only go on together: one that runs alone, or all beams of its search that run."""
        if not running.request.beam_width:
            return [running]
        search = running.request.turn.request_id
        return [r for r in self._in_order if r.request.beam_width and r.request.turn.request_id == search]

    def groups(self) -> Iterator[list[Running]]:
        """All of these, in the order of turns, which leaves the beams of a search together."""
        at = 0
        while at < len(self._in_order):
            group = self.group(self._in_order[at])
            yield group
            at += len(group)

    def add(self, running: Running) -> None:
        """One more runs."""
        self._of[running.request] = running
        insort(self._in_order, running, key=_turn)

    def remove(self, running: Running) -> None:
        """It runs no longer; its row is free."""
        del self._of[running.request]
        self._in_order.remove(running)
        if running.row is not None:
            self._free_rows.append(running.row)

    # Rows

    @property
    def has_free_row(self) -> bool:
        """Whether a row is nobody's."""
        return bool(self._free_rows)

    @property
    def has_parked(self) -> bool:
        """Whether any has no row, between steps."""
        return len(self._in_order) + len(self._free_rows) > self._num_rows

    def take_row(self) -> int | None:
        """A free row, taken, or None."""
        return self._free_rows.pop() if self._free_rows else None

    def give_row(self, row: int) -> None:
        """A taken row is free again."""
        self._free_rows.append(row)

    def check(self) -> None:
        """Raise BrokenInvariant if a row has two owners or none."""
        rows = [r.row for r in self._in_order if r.row is not None] + self._free_rows
        if sorted(rows) != list(range(self._num_rows)):
            raise BrokenInvariant(f"rows lost or owned twice: {sorted(rows)} of {self._num_rows}")


def _turn(running: Running) -> Turn:
    return running.request.turn
