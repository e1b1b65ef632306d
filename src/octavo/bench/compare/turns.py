"""Who comes when in a round, and what each is given."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bench.compare.contestant import Contestant
from octavo.bench.experiment import WARM_UP
from octavo.bench.workloads.item import WorkItem, Workload


def order_of(number: int, count: int) -> list[int]:
    """The places of ``count`` contestants in the order of their turns in a round; rounds count from 0.

    Every second round is the one before it backwards, so what drifts evenly cancels in each pair of rounds.
    After ``count`` rounds (twice as many if it is odd) each has come directly after each other equally often.
    """
    first = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(count)]  # 0, 1, -1, 2, -2, ...: Williams
    turns = [(place + number // 2) % count for place in first]
    return turns[::-1] if number % 2 else turns


@dataclass(frozen=True, slots=True)
class Contents:
    """The requests of each contestant; those of a round have lengths and arrivals of that round.

    Attributes:
        own: each contestant has contents of its own, as some may look into the same cache: whoever comes
            later would find there what the other computed. Lengths, structure and arrivals are the same.
    """

    workload: Workload
    own: bool

    @staticmethod
    def choose(workload: Workload, contestants: Sequence[Contestant]) -> "Contents":
        """The same for all, unless it can differ and two or more ran before: who knows what these share."""
        may_share = sum(each.runs_at is not None for each in contestants) > 1
        return Contents(workload, may_share and workload.can_differ)

    def of_round(self, number: int, place: int) -> list[WorkItem]:
        """For the contestant at a place of the list, in a round that counts from 0."""
        return self.workload.items(number, place if self.own else 0)

    def of_warm_up(self, place: int) -> list[WorkItem]:
        """Before its first round."""
        return self.workload.items(WARM_UP, place if self.own else 0)
