"""Who gives way: takes the blocks of a request, which goes back to the queue.

It keeps its tokens, and its full blocks keep their names, so resuming finds again whatever was not
overwritten meanwhile. Beams of one search wait for one another at each token: they lose their blocks
together, wait as one, and come back together.
"""

from typing import Final

from octavo.core.request import Request
from octavo.scheduling.running import Running, RunningSet
from octavo.scheduling.waiting import WaitingQueue

# After so many preemptions a request comes back only when the pool can hold the most that it and everything
# that runs may still grow to; from then on nothing preempts it.
MAX_PREEMPTIONS: Final = 3


def is_protected(request: Request) -> bool:
    """Whether it was preempted so often that nothing may preempt it again."""
    return request.num_preemptions >= MAX_PREEMPTIONS


class Preemption:
    """Between the running requests and the queue.

    Attributes:
        num_preemptions: so far; that of a search counts once.
    """

    def __init__(self, running: RunningSet, waiting: WaitingQueue) -> None:
        self.num_preemptions = 0
        self._running = running
        self._waiting = waiting

    def victim_for(self, needy: Running, *, at_any_price: bool = False) -> Running | None:
        """The last that may give way to ``needy``: whose turn is later, and whose work is not planned yet.

        Beams do not give way to others of their search, which could not go on without them.
        """
        together = self._running.group(needy)
        for running in reversed(self._running.in_order):
            if running in together:
                return None
            if is_protected(running.request) and not at_any_price:
                continue
            if not any(r.is_planned for r in self._running.group(running)):
                return running
        return None

    def preempt(self, running: Running) -> None:
        """Send a request back to the queue, or all beams of a search."""
        group = self._running.group(running)
        for member in group:
            self._running.leave(member)
            member.request.num_computed = 0
            member.request.candidates = None  # they come again with the last token's KV
        first = group[0].request
        first.forks += [member.request for member in group[1:]]
        for request in [first, *first.forks] if first.beam_width else [first]:
            request.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.add(first)
