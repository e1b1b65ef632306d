"""What a target's KV pool was used for while it worked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from octavo.bench.load.target import MemoryFacts, Target

_INTERVAL_S: Final = 0.5


class MemoryWatch:
    """Asks twice a second, and before and after."""

    def __init__(self) -> None:
        self._before: MemoryFacts | None = None
        self._after: MemoryFacts | None = None
        self._during: list[MemoryFacts] = []

    def as_dict(self) -> dict[str, Any] | None:
        """For reports; None if the target does not tell.

        ``peak_blocks`` is exact where this run held more than any before it; otherwise the most that was seen
        (``peak_is_exact`` says which). ``waste_mean`` is over the moments at which something was held.
        """
        before, after = self._before, self._after
        if before is None or after is None:
            return None
        seen = [*self._during, after]
        is_exact = after.peak_blocks > before.peak_blocks
        peak = after.peak_blocks if is_exact else max(facts.used_blocks for facts in seen)
        waste = [facts.waste for facts in seen if facts.used_blocks]
        queried = after.query_tokens - before.query_tokens
        return {
            "peak_blocks": peak,
            "peak_is_exact": is_exact,
            "peak_bytes": peak * after.block_bytes,
            "peak_fraction": round(peak / after.total_blocks, 6) if after.total_blocks else None,
            "total_blocks": after.total_blocks,
            "block_bytes": after.block_bytes,
            "waste_mean": round(sum(waste) / len(waste), 6) if waste else None,
            "waste_max": round(max(waste), 6) if waste else None,
            "preemptions": after.num_preemptions - before.num_preemptions,
            "hit_rate": round((after.hit_tokens - before.hit_tokens) / queried, 6) if queried else None,
        }


@asynccontextmanager
async def watch_memory(target: Target) -> AsyncIterator[MemoryWatch]:
    """Watches while the block runs."""
    watch = MemoryWatch()
    watch._before = await target.memory()
    asking = None if watch._before is None else asyncio.create_task(_ask(target, watch))
    try:
        yield watch
    finally:
        if asking is not None:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            watch._after = await target.memory()


async def _ask(target: Target, watch: MemoryWatch) -> None:
    while True:
        await asyncio.sleep(_INTERVAL_S)
        if (facts := await target.memory()) is not None:
            watch._during.append(facts)
