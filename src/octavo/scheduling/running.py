"""Who runs: requests that hold blocks, in the order of their turns, and all that is kept for each of them.

A row is a place in a step, a sequence is blocks. What is computed needs both. A request that has its blocks
but no row is *parked*: it costs no time, and nothing is lost when it gets a row again.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.core.request import Request, Turn
from octavo.paging.invariants import BrokenInvariant
from octavo.paging.manager import KVManager
from octavo.paging.matching import PrefixMatch
from octavo.scheduling.drafting import Drafter
from octavo.scheduling.in_flight import InFlightPrefixes


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
    """Who runs, and rows 0 .. num_rows - 1.

    Args:
        prefixes: told what is being computed, and when that ends.
        drafter: told who runs no longer.

    Attributes:
        in_order: who runs, in the order of turns; to be read only.
        num_changes: how often one came or went; while it stays the same, so do they.
        closed_rows: rows that lost their owner and that the runner has not been told of.
    """

    def __init__(
        self, kv: KVManager, num_rows: int, *, prefixes: InFlightPrefixes, drafter: Drafter | None
    ) -> None:
        self.in_order: list[Running] = []
        self.num_changes = 0
        self.closed_rows: list[int] = []
        self._kv = kv
        self._prefixes = prefixes
        self._drafter = drafter
        self._num_rows = num_rows
        self._free_rows = list(reversed(range(num_rows)))
        self._of: dict[Request, Running] = {}

    def find(self, request: Request) -> Running | None:
        """Who runs for ``request``, or None."""
        return self._of.get(request)

    def group(self, running: Running) -> list[Running]:
        """Those that can only go on together: one that runs alone, or all beams of its search that run."""
        if not running.request.beam_width:
            return [running]
        search = running.request.turn.request_id
        return [r for r in self.in_order if r.request.beam_width and r.request.turn.request_id == search]

    def groups(self) -> Iterator[list[Running]]:
        """All of these, in the order of turns, which leaves the beams of a search together."""
        at = 0
        while at < len(self.in_order):
            group = self.group(self.in_order[at])
            yield group
            at += len(group)

    # Coming and going

    def match(self, request: Request) -> PrefixMatch:
        """What the cache has of a request; nothing if the logits of its prompt are wanted."""
        limit = len(request.prompt_logprobs) if request.is_scored else None
        return self._kv.match(request.token_ids, salt=request.salt, limit=limit)

    def start(self, request: Request, match: PrefixMatch) -> Running:
        """``request`` runs from now on, with the blocks of its match and no row."""
        request.num_computed = match.num_tokens
        if self._kv.matcher.enabled:
            self._prefixes.start(request, match)
        seq_id = self._kv.create_sequence(request.token_ids, salt=request.salt, match=match)
        return self._add(Running(request, seq_id, match.num_tokens))

    def fork(self, parent: Running, request: Request, num_shared: int, *, row: int | None = None) -> Running:
        """``request`` runs on the first ``num_shared`` tokens of another's sequence, then its own."""
        seq_id = self._kv.fork(parent.seq_id)
        self._kv.truncate(seq_id, num_shared)
        self._kv.append_tokens(seq_id, request.token_ids[num_shared:])
        request.num_computed = num_shared
        return self._add(Running(request, seq_id, num_shared, row))

    def leave(self, running: Running) -> None:
        """It runs no longer: its row and its blocks are free."""
        request = running.request
        del self._of[request]
        self.in_order.remove(running)
        self.num_changes += 1
        self._prefixes.stop(request)
        if self._drafter is not None:
            self._drafter.forget(request)
        self._kv.release_sequence(running.seq_id)
        if running.row is not None:
            self.give_row(running.row)

    def _add(self, running: Running) -> Running:
        self._of[running.request] = running
        insort(self.in_order, running, key=_turn)
        self.num_changes += 1
        return running

    # Rows

    @property
    def has_free_row(self) -> bool:
        """Whether a row is nobody's."""
        return bool(self._free_rows)

    @property
    def has_parked(self) -> bool:
        """Whether any has no row, between steps."""
        return len(self.in_order) + len(self._free_rows) > self._num_rows

    def take_row(self) -> int | None:
        """A free row, taken, or None."""
        return self._free_rows.pop() if self._free_rows else None

    def give_row(self, row: int) -> None:
        """A taken row is free again."""
        self._free_rows.append(row)
        self.closed_rows.append(row)

    def park(self, running: Running) -> None:
        """It keeps its blocks and gives its row back."""
        assert running.row is not None
        self.give_row(running.row)
        running.row = None

    def check(self) -> None:
        """Raise BrokenInvariant if a row has two owners or none, or blocks are held though nobody runs."""
        rows = [r.row for r in self.in_order if r.row is not None] + self._free_rows
        if sorted(rows) != list(range(self._num_rows)):
            raise BrokenInvariant(f"rows lost or owned twice: {sorted(rows)} of {self._num_rows}")
        num_held = self._kv.pool.num_blocks - 1 - self._kv.num_free_blocks
        if num_held and not self.in_order:
            raise BrokenInvariant(f"{num_held} blocks are held though nothing runs")


def _turn(running: Running) -> Turn:
    return running.request.turn
