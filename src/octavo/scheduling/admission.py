"""Who fits: refuses what never can, and keeps free what those that run are sure to need."""

from typing import Final

from octavo.core.errors import InvalidRequest
from octavo.core.request import Request
from octavo.paging.grants import SlotPlan
from octavo.paging.groups import most_frames
from octavo.paging.manager import KVManager
from octavo.paging.matching import PrefixMatch
from octavo.scheduling.running import Running, RunningSet

# After so many preemptions a request comes back only when the pool can hold the most that it and everything
# that runs may still grow to; from then on nothing preempts it.
MAX_PREEMPTIONS: Final = 3


class Admission:
    """Counts blocks; changes nothing."""

    def __init__(self, kv: KVManager, running: RunningSet) -> None:
        self._kv = kv
        self._running = running

    @staticmethod
    def is_protected(request: Request) -> bool:
        """Whether it was preempted so often that nothing may preempt it again."""
        return request.num_preemptions >= MAX_PREEMPTIONS

    def check_fits(self, request: Request) -> None:
        """Refuse what could never run.

        Raises:
            InvalidRequest: the pool has fewer blocks than the request may need, even alone.
        """
        last = request.max_len - 1  # the last token's KV is never computed
        needed = most_frames(self._kv.groups, last)
        usable = self._kv.pool.num_blocks - 1
        if needed > usable:
            raise InvalidRequest(
                f"{request.prompt_len} prompt tokens and up to {request.max_len - request.prompt_len} new "
                f"ones need {needed} KV blocks, the pool has {usable}: "
                "ask for fewer tokens or give the engine more kv_memory",
                param="max_tokens",
            )
        width = request.beam_width
        if width > 1:
            shared = sum(
                request.prompt_len // spec.block_size * spec.num_tables
                for spec in self._kv.groups
                if spec.window is None and self._kv.matcher.enabled
            )
            together = shared + width * (needed - shared)
            if together > usable:
                raise InvalidRequest(
                    f"{width} beams of up to {request.max_len} tokens need {together} KV blocks, the pool "
                    f"has {usable}: ask for fewer beams or tokens or give the engine more kv_memory",
                    param="max_tokens",
                )

    def blocks_spoken_for(self, candidate: Request, match: PrefixMatch) -> int:
        """Blocks the pool must have free to admit the candidate.

        That is what it and the running requests are sure to need soon: the rest of their prompts, and a block
        more for each that runs. If the candidate was preempted too often, or comes before one that was, it is
        the most they can ever need.
        """
        final = self.is_protected(candidate) or any(
            self.is_protected(r.request) and r.request.turn > candidate.turn for r in self._running
        )
        total = self._kv.growth_from(match, self._goal(candidate, final=final))
        for running in self._running:
            goal = self._goal(running.request, final=final)
            total += self._kv.growth(running.seq_id, goal, spare_blocks=0 if final else 1)
        return total

    @staticmethod
    def _goal(request: Request, *, final: bool) -> int:
        return request.max_len - 1 if final else len(request.token_ids)

    def fit(self, running: Running, count: int) -> SlotPlan | None:
        """A plan for the most of ``count`` tokens that fits in the free blocks, or None if not one does."""
        slots = self._kv.plan_slots(running.seq_id, count)
        if slots.fits:
            return slots
        best = None
        low, high = 1, count - 1
        while low <= high:
            middle = (low + high) // 2
            slots = self._kv.plan_slots(running.seq_id, middle)
            if slots.fits:
                best, low = slots, middle + 1
            else:
                high = middle - 1
        return best
