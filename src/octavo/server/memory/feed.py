"""The live view of the KV pool: a task that looks at the engine now and then, and whoever watches.

A look costs the engine's thread a little, so looks come as often as somebody wants them and no more often
than they may take of the engine's time. Nothing is looked at while nothing happens.

Whoever watches gets the past, then what has changed since the frame before. That is found when it is sent,
from the number of the frame in which each block last changed: a slow reader misses frames and never makes
anything grow.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

import numpy as np

from octavo.engine.async_engine import AsyncEngine, EngineDraining
from octavo.engine.block_map import BlockMap, look
from octavo.engine.engine import Engine
from octavo.server.memory.activity import Activity
from octavo.server.memory.blocks import Arrangement, BlockResolver, BlockRows
from octavo.server.memory.entries import RequestEntries, frame_stats
from octavo.server.memory.frames import FrameHead, change_frame, full_frame, heartbeat
from octavo.server.memory.history import MAX_BYTES, PAST_S, Change, History
from octavo.server.registry import RequestRegistry

USUAL_INTERVAL_S: Final = 0.5
MIN_INTERVAL_S: Final = 0.1
MAX_INTERVAL_S: Final = 10.0
HEARTBEAT_S: Final = 4.0
MAX_LOOK_SHARE: Final = 0.004  # of the engine's time
MAX_BUILD_SHARE: Final = 0.02  # of the event loop's time
_SMOOTHING: Final = 0.2
_RATE_S: Final = 1.0  # time over which tokens per second are counted


class TimedLook(NamedTuple):
    """A look, when it began on the monotonic clock, and how long the engine's thread was busy with it."""

    blocks: BlockMap
    at_s: float
    taken_s: float


def timed_look(engine: Engine) -> TimedLook:
    """For ``AsyncEngine.inspect``."""
    at_s = time.monotonic()
    began_s = time.perf_counter()
    blocks = look(engine)
    return TimedLook(blocks, at_s, time.perf_counter() - began_s)


class FeedState:
    """All that is known of the blocks, from one look to the next; no task, no clock.

    Attributes:
        number: of the latest frame, from 1; 0 before the first look.
        frame: the latest, as it is sent to those who have the one before.
        changed_at: Unix seconds, per block id.
        cost: share of the engine's time that looking took, lately.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        activity: Activity,
        registry: RequestRegistry,
        past_s: float = PAST_S,
        max_past_bytes: int = MAX_BYTES,
    ) -> None:
        self.number = 0
        self.frame = ""
        self.changed_at = np.zeros(num_blocks)
        self.cost = 0.0
        self.resolver = BlockResolver(num_blocks)
        self.entries = RequestEntries(activity, registry)
        self.history: History | None = None
        self._activity = activity
        self._past_s = past_s
        self._max_past_bytes = max_past_bytes
        self._rows = BlockRows.empty(num_blocks)
        self._changed_in = np.zeros(num_blocks, np.int64)  # number of the frame
        self._head = FrameHead(0.0, num_blocks - 1, {})
        self._at_s = 0.0
        self._told_until: deque[tuple[int, float]] = deque(maxlen=1024)  # numbers of frames, and when
        self._since: dict[int, str] = {}
        self._totals: deque[tuple[float, int, int]] = deque()

    def update(self, seen: TimedLook, unix_s: float) -> Arrangement:
        """Make a frame of a look; returns what was seen.

        Args:
            unix_s: when it was, as ``time.time`` says.
        """
        found = self.resolver.arrange(seen.blocks)
        ids = found.rows.differing(self._rows)
        self.number += 1
        self._changed_in[ids] = self.number
        self.changed_at[ids if self.number > 1 else slice(None)] = unix_s
        self._rows = found.rows
        self._since.clear()
        before_s, self._at_s = self._at_s, seen.at_s
        self._told_until.append((self.number, seen.at_s))
        self._head = FrameHead(unix_s, self.resolver.num_blocks - 1, self._fields(found, unix_s))
        if self.history is None:
            self.frame = self._full(since_s=-math.inf)
            self.history = History(
                self._rows, unix_s, self.frame, past_s=self._past_s, max_bytes=self._max_past_bytes
            )
            return found
        rows = self._rows.take(ids)
        self.frame = change_frame(self._timed(before_s), ids, rows)
        self._since[self.number - 1] = self.frame
        self.history.add(Change(unix_s, ids, rows), self.frame)
        return found

    def frame_since(self, number: int) -> str:
        """What somebody who has frame ``number`` has to be told to know what is known now."""
        if number not in self._since:
            ids = np.flatnonzero(self._changed_in > number).astype(np.int32)
            at_s = next((at_s for told, at_s in self._told_until if told == number), None)
            if at_s is None or 2 * len(ids) > len(self._changed_in):
                self._since[number] = self._full(at_s)
            else:
                self._since[number] = change_frame(self._timed(at_s), ids, self._rows.take(ids))
        return self._since[number]

    @property
    def is_settled(self) -> bool:
        """Whether another look would find the same rates, if nothing happens."""
        stats = self._head.fields.get("stats", {"tokens_per_s": 1})
        return not stats["tokens_per_s"] and not stats.get("prompt_tokens_per_s")

    def _full(self, since_s: float | None = None) -> str:
        head = self._timed(self._at_s if since_s is None else since_s)
        return full_frame(head, self._rows, head.t - self.changed_at)

    def _fields(self, found: Arrangement, unix_s: float) -> dict[str, Any]:
        blocks = found.blocks
        tokens_per_s, prompt_tokens_per_s = self._rates(blocks)
        return {
            "requests": self.entries.entries(found, self._at_s),
            "num_requests": blocks.num_requests,
            "stats": {
                **frame_stats(found),
                "tokens_per_s": tokens_per_s,
                "prompt_tokens_per_s": prompt_tokens_per_s,
            },
            "cost": round(self.cost, 6),
        }

    def _timed(self, after_s: float) -> FrameHead:
        """The head of a frame for somebody whose last one was of ``after_s``."""
        to_unix = self._head.t - self._at_s
        ttft_s = self._activity.median_ttft_s(after_s, self._at_s)
        steps = [
            [round(step.finished_s + to_unix, 4), round(step.duration_s, 6), *step[2:]]
            for step in self._activity.steps(after_s, self._at_s)
        ]
        fields = self._head.fields
        stats = {**fields["stats"], "ttft_s": None if ttft_s is None else round(ttft_s, 6)}
        return self._head._replace(fields={**fields, "stats": stats, "steps": steps})

    def _rates(self, blocks: BlockMap) -> tuple[float, float]:
        """Output and prompt tokens per second, over the last second or the time between two looks."""
        num_output = self._activity.num_output_tokens + blocks.scheduling.num_drafts_accepted
        now = self._at_s, num_output, self._activity.num_prompt_tokens
        totals = self._totals
        totals.append(now)
        while len(totals) > 2 and totals[1][0] <= now[0] - _RATE_S:
            totals.popleft()
        then = totals[0]
        passed_s = now[0] - then[0]
        if passed_s <= 0:
            return 0.0, 0.0
        return round((now[1] - then[1]) / passed_s, 3), round((now[2] - then[2]) / passed_s, 3)


class MemoryFeed:
    """Looks at an engine from ``start`` to ``stop``.

    Args:
        engine: has been started; ``activity`` has to be its observer, or among them.

    Attributes:
        activity: to be told of every step.
        state: what is known.
    """

    def __init__(self, engine: AsyncEngine, registry: RequestRegistry) -> None:
        self.activity = Activity()
        num_blocks = engine.llm.engine.scheduler.kv.pool.num_blocks
        self.state = FeedState(num_blocks, activity=self.activity, registry=registry)
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # set, and replaced, with each frame
        self._stopped = asyncio.Event()
        self._joined = asyncio.Event()  # somebody began to watch
        self._wanted: dict[object, float] = {}  # intervals of those who watch
        self._look_s = self._build_s = 0.0
        self._framed_events = self._looked_events = -1  # of the activity, before the last frame and look
        self._found: Arrangement | None = None
        self._looked_at_s = 0.0
        self._heartbeat = (-math.inf, 0.0)  # the last one: monotonic clock, Unix seconds
        self._looking = asyncio.Lock()

    def start(self) -> None:
        """Begin to look; in the event loop, after the engine was started."""
        if self._task is None:
            self._stopped.clear()
            self._changed = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="memory feed")

    async def stop(self) -> None:
        """End all streams and look no more. Do so before waiting for open connections."""
        self._stopped.set()
        self._changed.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @property
    def interval_s(self) -> float:
        """Seconds between two looks now."""
        wanted = min(self._wanted.values(), default=USUAL_INTERVAL_S)
        allowed = max(self._look_s / MAX_LOOK_SHARE, self._build_s / MAX_BUILD_SHARE)
        return min(max(wanted, allowed, MIN_INTERVAL_S), 60.0)

    async def frames(
        self, interval_s: float = USUAL_INTERVAL_S, past_s: float = PAST_S
    ) -> AsyncIterator[str]:
        """The past, then live frames until the feed is stopped.

        Args:
            interval_s: seconds between two live frames at least.
            past_s: seconds of the past at most; of 0 it is a key frame alone.
        """
        me = object()
        self._wanted[me] = interval_s = min(max(interval_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
        self._joined.set()
        try:
            while self.state.history is None and not self._stopped.is_set():
                await self._next_change(HEARTBEAT_S)
            if self.state.history is None:
                return
            number = self.state.number
            for frame in self.state.history.frames(time.time() - past_s):
                yield frame
            while not self._stopped.is_set():
                if self.state.number == number and not await self._next_change(HEARTBEAT_S):
                    self._heartbeat = time.monotonic(), time.time()
                    yield heartbeat(self.state.frame, self._heartbeat[1])
                    continue
                if self.state.number != number:
                    frame = self.state.frame_since(number)
                    number = self.state.number
                    yield frame
                    with contextlib.suppress(TimeoutError):  # a little less: the feed has the same beat
                        await asyncio.wait_for(self._stopped.wait(), 0.8 * interval_s)
        finally:
            del self._wanted[me]

    async def arrangement(self) -> Arrangement:
        """What is now, for one answer.

        Many who ask at once share a look, and answers together take no more of the engine's time than frames.

        Raises:
            EngineDraining: the engine's thread does not run.
        """
        asked_s = time.monotonic()
        async with self._looking:
            found = self._found
            is_fresh = self.activity.num_events == self._looked_events or self._looked_at_s >= asked_s
            if found is None or not is_fresh:
                await asyncio.sleep(self._looked_at_s + self._look_s / MAX_LOOK_SHARE - time.monotonic())
                seen = await self._look()
                self._found = found = self.state.resolver.arrange(seen.blocks)
            return found

    async def look_now(self) -> None:
        """Take a look and make a frame of it.

        Raises:
            EngineDraining: the engine's thread does not run.
        """
        async with self._looking:
            seen = await self._look()
            began_s = time.perf_counter()
            self.state.cost = self._look_s / self.interval_s
            self._framed_events = self._looked_events
            unix_s = time.time() - (time.monotonic() - seen.at_s)
            heartbeat_at_s, heartbeat_s = self._heartbeat
            if heartbeat_at_s > seen.at_s:  # sent since: to those who read, time does not run back
                unix_s = heartbeat_s
            self._found = self.state.update(seen, unix_s)
            self._build_s = _smoothed(self._build_s, time.perf_counter() - began_s)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _look(self) -> TimedLook:
        num_events = self.activity.num_events  # read first: what comes meanwhile may not be in it
        seen = await self._engine.inspect(timed_look)
        self._looked_events, self._looked_at_s = num_events, seen.at_s
        self._look_s = _smoothed(self._look_s, seen.taken_s) if self._look_s else seen.taken_s
        return seen

    async def _next_change(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def _run(self) -> None:
        while not self._stopped.is_set():  # asked too: wait_for may lose a cancellation
            if self.activity.num_events != self._framed_events or not self.state.is_settled:
                try:
                    await self.look_now()
                except EngineDraining:
                    return
                except Exception:  # the view is not worth more than the service
                    logging.getLogger(__name__).exception("the memory feed could not make a frame")
                    await asyncio.sleep(HEARTBEAT_S)
            await self._pause(time.monotonic())

    async def _pause(self, began_s: float) -> None:
        """Wait for the next look, which comes sooner when somebody joins who wants it sooner."""
        while (left_s := began_s + self.interval_s - time.monotonic()) > 0 and not self._stopped.is_set():
            self._joined.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._joined.wait(), left_s)


def _smoothed(before: float, now: float) -> float:
    return before + _SMOOTHING * (now - before)
