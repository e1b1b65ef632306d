"""Who runs: rows, and the requests that hold them in the order of their turns."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.core.request import Request, Turn
from octavo.paging.invariants import BrokenInvariant


@dataclass(slots=True, eq=False)
class Running:
    """A request that holds a row and a sequence.

    Attributes:
        num_slots: tokens that have slots, and whose KV is computed after this step at the latest.
        drafts: guesses at the tokens behind the known ones, while a step is planned.
    """

    request: Request
    seq_id: int
    row: int
    num_slots: int
    drafts: list[int] = field(default_factory=list)


class RunningSet:
    """Rows 0 .. num_rows - 1, and who holds them. Iteration is in the order of turns."""

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

    @property
    def has_free_row(self) -> bool:
        """Whether another one may run."""
        return bool(self._free_rows)

    def take_row(self) -> int | None:
        """A free row, taken, or None."""
        return self._free_rows.pop() if self._free_rows else None

    def give_row(self, row: int) -> None:
        """A taken row is free again."""
        self._free_rows.append(row)

    def add(self, running: Running) -> None:
        """One more runs, on a row that was taken for it."""
        self._of[running.request] = running
        insort(self._in_order, running, key=_turn)

    def remove(self, running: Running) -> None:
        """It runs no longer; its row is free."""
        del self._of[running.request]
        self._in_order.remove(running)
        self._free_rows.append(running.row)

    def check(self) -> None:
        """Raise BrokenInvariant if a row has two owners or none."""
        rows = [running.row for running in self._in_order] + self._free_rows
        if sorted(rows) != list(range(self._num_rows)):
            raise BrokenInvariant(f"rows lost or owned twice: {sorted(rows)} of {self._num_rows}")


def _turn(running: Running) -> Turn:
    return running.request.turn
