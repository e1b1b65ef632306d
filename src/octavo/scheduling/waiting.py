"""The queue: who is next.

A request's turn is a number fixed when it arrives, so the queue stays sorted while it ages: under "fcfs" the
order of arrival; under "priority" the step of arrival plus ``AGEING_STEPS`` for each level of priority.
Whoever waits that long overtakes newcomers that are one level more urgent, so none waits for ever.
"""

from bisect import insort
from typing import Final

from octavo.core.config import Scheduling
from octavo.core.errors import QueueFull
from octavo.core.request import Request, Turn

AGEING_STEPS: Final = 1000


class WaitingQueue:
    """Requests in the order of their turns.

    Attributes:
        in_order: all of them; to be read only.

    Args:
        max_waiting: sequences that may wait, each sample counted, when a request comes; None is no limit.
    """

    def __init__(self, policy: Scheduling, max_waiting: int | None) -> None:
        self._policy = policy
        self._max_waiting = max_waiting
        self.in_order: list[Request] = []

    @property
    def num_sequences(self) -> int:
        """Sequences that wait: requests and their forks."""
        return sum(1 + len(request.forks) for request in self.in_order)

    def check_room(self, newcomer: Request) -> None:
        """Raise QueueFull if too many would wait with this one. An empty queue takes any."""
        if self._max_waiting is None or not self.in_order:
            return
        num_waiting, num_more = self.num_sequences, 1 + len(newcomer.forks)
        if num_waiting + num_more > self._max_waiting:
            raise QueueFull(
                f"{num_waiting} sequences are waiting and this request has {num_more} more; "
                f"at most {self._max_waiting} may wait: try again later",
                limit=self._max_waiting,
            )

    def turn_of(self, request: Request, step: int) -> Turn:
        """The turn of a request that arrives at this step."""
        if self._policy == "fcfs":
            return Turn(0, request.request_id)
        return Turn(request.priority * AGEING_STEPS + step, request.request_id)

    def add(self, request: Request) -> None:
        """Put a request where its turn is, whether it is new or comes back."""
        insort(self.in_order, request, key=_turn)

    def remove(self, request: Request) -> None:
        """Take a request out.

        Raises:
            ValueError: it does not wait here.
        """
        self.in_order.remove(request)


def _turn(request: Request) -> Turn:
    return request.turn
