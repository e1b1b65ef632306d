"""When the event loop of the load generator came late to what had arrived."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

_LOOK_S: Final = 0.02  # more often would cost: a timer that fires finds its code in no cache
_TIMER_S: Final = 0.002  # an event loop that has nothing else to do wakes up to a millisecond late

# From when something waited for the loop until it got there. In their order, and none in another.
Stalls = Sequence[tuple[float, float]]


@contextmanager
def watch_stalls() -> Iterator[list[tuple[float, float]]]:
    """Gives the stalls of the running loop, which come as the block runs.

    What was seen in a stall may have come since its begin, and what came one after the other may have been
    seen together. A timer tells: it is late by what the loop does, or by what keeps it from a processor.
    """
    found: list[tuple[float, float]] = []
    loop = asyncio.get_running_loop()
    handle: asyncio.TimerHandle

    def look(due_s: float) -> None:
        nonlocal handle
        now_s = time.perf_counter()
        if now_s - due_s > _TIMER_S:
            found.append((due_s, now_s))
        handle = loop.call_later(_LOOK_S, look, now_s + _LOOK_S)

    handle = loop.call_later(_LOOK_S, look, time.perf_counter() + _LOOK_S)
    try:
        yield found
    finally:
        handle.cancel()
