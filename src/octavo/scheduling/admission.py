"""Who fits: refuses what never can, and keeps free what those that run are sure to need."""

from octavo.core.errors import InvalidRequest
from octavo.core.request import Request
from octavo.paging.grants import SlotPlan
from octavo.paging.groups import most_frames
from octavo.paging.manager import KVManager
from octavo.paging.matching import PrefixMatch
from octavo.scheduling.preemption import is_protected
from octavo.scheduling.running import Running, RunningSet


class Admission:
    """Counts blocks; changes nothing."""

    def __init__(self, kv: KVManager, running: RunningSet) -> None:
        self._kv = kv
        self._running = running

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
            together = needed + (width - 1) * self._beyond_prompt(request, last, self._kv.matcher.enabled)
            if together > usable:
                raise InvalidRequest(
                    f"{width} beams of up to {request.max_len} tokens need {together} KV blocks, the pool "
                    f"has {usable}: ask for fewer beams or tokens or give the engine more kv_memory",
                    param="max_tokens",
                )

    def blocks_spoken_for(self, candidate: Request, match: PrefixMatch) -> int:
        """Blocks the pool must have free to admit the candidate.

        That is what it and the running requests are sure to need soon: the rest of their prompts, a block
        more for each that runs, and what the beams of a search take that are not there yet. If the candidate
        was preempted too often, or comes before one that was, it is the most they can ever need.
        """
        final = is_protected(candidate) or any(
            is_protected(r.request) and r.request.turn > candidate.turn for r in self._running.in_order
        )
        total = self._kv.growth_from(match, self._goal(candidate, final=final))
        total += self._growth_to_come(candidate, 1, final=final)
        for running in self._running.in_order:
            goal = self._goal(running.request, final=final)
            total += self._kv.growth(running.seq_id, goal, spare_blocks=0 if final else 1)
        for group in self._running.groups():
            total += self._growth_to_come(group[0].request, len(group), final=final)
        return total

    def _growth_to_come(self, request: Request, num_here: int, *, final: bool) -> int:
        """Blocks for sequences that will go on beside ``num_here`` of this request, and are not there yet."""
        if request.beam_width:
            count = request.beam_width - num_here
        else:  # a sample that finds no blocks may wait, as the others do not wait for it
            count = len(request.forks) if final else 0
        if not count:
            return 0
        shares = self._kv.matcher.enabled or not request.num_preemptions
        return count * self._beyond_prompt(request, self._goal(request, final=final), shares)

    def _beyond_prompt(self, request: Request, seq_len: int, shares: bool) -> int:
        """Blocks of another sample or beam at ``seq_len`` tokens, beside those of the prompt if it shares it.

        Beams that come back after a preemption find the prompt by name, so only if there is a prefix cache.
        What a window covers counts as not shared: others may leave it.
        """
        total = most_frames(self._kv.groups, seq_len)
        if shares:
            for spec in self._kv.groups:
                if spec.window is None:
                    total -= request.prompt_len // spec.block_size * spec.num_tables
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
