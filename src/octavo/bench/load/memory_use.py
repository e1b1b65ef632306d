"""What a target's KV pool was used for while it worked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from octavo.bench.load.target import MemoryFacts, Target

_INTERVAL_S: Final = 0.5
_FIRST_INTERVAL_S: Final = 0.05  # from there it doubles, so that short runs are seen too


class MemoryWatch:
    """Looks at moments before, during and after a run."""

    def __init__(self) -> None:
        self._before: MemoryFacts | None = None
        self._after: MemoryFacts | None = None
        self._most_used: int | None = None  # None until something is seen to be held
        self._waste_sum = self._waste_max = 0.0
        self._num_waste = 0

    def begin(self, facts: MemoryFacts | None) -> None:
        """Before anything runs."""
        self._before = facts

    def see(self, facts: MemoryFacts | None) -> None:
        """While it runs."""
        if facts is not None and facts.used_blocks:
            self._most_used = max(self._most_used or 0, facts.used_blocks)
            self._waste_sum += facts.waste
            self._waste_max = max(self._waste_max, facts.waste)
            self._num_waste += 1

    def end(self, facts: MemoryFacts | None) -> None:
        """When all is over."""
        self.see(facts)
        self._after = facts

    def as_dict(self) -> dict[str, Any] | None:
        """For reports; None if the target does not tell.

        ``peak_blocks`` is exact where this run held more than any before it; otherwise the most that was seen
        (``peak_is_exact`` says which), or None if nothing was held at any moment that it was looked at.
        ``waste_mean`` is over the moments at which something was held.
        """
        before, after = self._before, self._after
        if before is None or after is None:
            return None
        is_exact = after.peak_blocks > before.peak_blocks
        peak = after.peak_blocks if is_exact else self._most_used
        queried = after.query_tokens - before.query_tokens
        return {
            "peak_blocks": peak,
            "peak_is_exact": is_exact,
            "peak_bytes": None if peak is None else peak * after.block_bytes,
            "peak_fraction": None
            if peak is None or not after.total_blocks
            else round(peak / after.total_blocks, 6),
            "total_blocks": after.total_blocks,
            "block_bytes": after.block_bytes,
            "waste_mean": round(self._waste_sum / self._num_waste, 6) if self._num_waste else None,
            "waste_max": round(self._waste_max, 6) if self._num_waste else None,
            "preemptions": after.num_preemptions - before.num_preemptions,
            "hit_rate": round((after.hit_tokens - before.hit_tokens) / queried, 6) if queried else None,
        }


@asynccontextmanager
async def watch_memory(target: Target) -> AsyncIterator[MemoryWatch]:
    """Looks after every step while the block runs, or asks, soon after its begin and then twice a second.

    It also asks before and after.
    """
    watch = MemoryWatch()
    before = await target.memory()
    watch.begin(before)
    is_told = target.watch(watch.see)
    asking = None if before is None or is_told else asyncio.create_task(_ask(target, watch))
    try:
        yield watch
    finally:
        target.watch(None)
        if asking is not None:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
        if before is not None:
            watch.end(await target.memory())


async def _ask(target: Target, watch: MemoryWatch) -> None:
    interval_s = _FIRST_INTERVAL_S
    while True:
        await asyncio.sleep(interval_s)
        watch.see(await target.memory())
        interval_s = min(2 * interval_s, _INTERVAL_S)
