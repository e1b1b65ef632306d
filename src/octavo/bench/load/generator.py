"""Sends the requests of a workload when they are due, and records what comes of each.

Every latency counts from the moment at which a request was due, not from that at which it was sent: a
generator or a server that falls behind cannot hide it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.exchange import INTERRUPTED, Exchange
from octavo.bench.load.stalls import Stalls, watch_stalls
from octavo.bench.load.target import Target
from octavo.bench.workloads.item import Prompt, WorkItem, follow

_LEAD_S: Final = 0.02  # before the first request, so that it is not late
# An event loop wakes up to a millisecond late; the last part of a wait is spent asking the clock.
_WATCHED_S: Final = 0.0015
# Answers are interpreted when all is over, as that takes processor time from a server on the same machine;
# once so much waits for it, each as soon as it is over.
_MOST_UNREAD_BYTES: Final = 1 << 28
EARLIER_TURN: Final = "an earlier turn failed"

Chain = list[WorkItem]
OnDone = Callable[["Record"], None]


@dataclass(frozen=True, slots=True)
class Record:
    """A request that was due, and what happened.

    Attributes:
        due_s: when it should have been sent, by the clock of ``exchange``.
    """

    item: WorkItem
    due_s: float
    exchange: Exchange

    @property
    def is_ok(self) -> bool:
        """Whether a whole answer came."""
        return self.exchange.failure is None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One run of a workload.

    Attributes:
        records: of all requests that were sent or could not be, in the order of the workload.
        start_s, end_s: the moment 0 of the arrivals, and that of the last byte of the last answer.
        num_not_sent: requests that an interruption left unsent.
        stalls: when what came was read late.
    """

    records: list[Record]
    start_s: float
    end_s: float
    num_not_sent: int
    stalls: Stalls = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing interrupted it."""
        interrupted = any(r.exchange.failure == INTERRUPTED for r in self.records)
        return not (self.num_not_sent or interrupted)


async def run_load(
    target: Target,
    items: Sequence[WorkItem],
    plan: ArrivalPlan,
    *,
    stop: asyncio.Event,
    on_done: OnDone = lambda _: None,
) -> LoadResult:
    """Send everything and wait for all answers.

    Args:
        stop: when set, nothing more is sent and what runs is ended; what there is comes back.
        on_done: told of each record when it is over; its exchange need not be settled.
    """
    generator = _Generator(target, on_done)
    chains = _chains(items)
    feeding = asyncio.create_task(generator.run(chains, plan))
    stopping = asyncio.create_task(stop.wait())
    with watch_stalls() as stalls:
        try:
            await asyncio.wait({feeding, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not feeding.done():
                feeding.cancel()
            await asyncio.gather(feeding, stopping, return_exceptions=True)
            await generator.end_all()
    if not feeding.cancelled() and (error := feeding.exception()) is not None:
        raise error
    records = sorted(generator.records, key=lambda record: record.item.index)
    for record in records:
        record.exchange.settle()
    end_s = max((_end_of(record) for record in records), default=generator.start_s)
    return LoadResult(records, generator.start_s, end_s, len(items) - len(records), stalls)


class _Generator:
    def __init__(self, target: Target, on_done: OnDone) -> None:
        self.records: list[Record] = []
        self.start_s = 0.0
        self._target = target
        self._on_done = on_done
        self._tasks: set[asyncio.Task[object]] = set()
        self._unread_bytes = 0

    async def run(self, chains: Sequence[Chain], plan: ArrivalPlan) -> None:
        times = plan.times([chain[0] for chain in chains])
        self.start_s = time.perf_counter() + _LEAD_S
        await _wait_until(self.start_s)
        if plan.kind == "closed":
            waiting = deque(chains)
            assert plan.concurrency is not None
            for _ in range(min(plan.concurrency, len(chains))):
                self._spawn(self._user(waiting))
        else:
            for chain, at in zip(chains, times, strict=True):
                due_s = self.start_s + at
                await _wait_until(due_s)
                self._spawn(self._chain(chain, due_s))
        while self._tasks:
            # One that failed is a mistake of this program; say so at once.
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                self._tasks.discard(task)
                task.result()

    async def end_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        self._tasks.add(asyncio.create_task(work))

    async def _user(self, waiting: deque[Chain]) -> None:
        due_s = self.start_s
        while waiting:
            due_s = await self._chain(waiting.popleft(), due_s)

    async def _chain(self, chain: Chain, due_s: float) -> float:
        """Send the turns of a conversation, or a single request; returns when the last was over."""
        prompt: Prompt = ""
        before: Exchange | None = None
        for item in chain:
            if before is None:
                prompt = item.prompt
            elif before.failure is not None:
                exchange = Exchange()
                exchange.fail(EARLIER_TURN)
                exchange.closed_s = before.closed_s
                self._note(Record(item, before.closed_s, exchange))
                continue
            else:
                due_s = before.closed_s + item.pause_s
                await _wait_until(due_s)
                prompt = follow(prompt, "".join(before.text), item.prompt)
            before = await self._send(item, prompt, due_s, is_followed=item is not chain[-1])
        assert before is not None
        return before.closed_s

    async def _send(self, item: WorkItem, prompt: Prompt, due_s: float, *, is_followed: bool) -> Exchange:
        exchange = Exchange()
        try:
            await self._target.send(prompt, item.max_tokens, exchange)
        except asyncio.CancelledError:
            exchange.fail(INTERRUPTED)
            raise
        finally:
            exchange.closed_s = exchange.closed_s or time.perf_counter()
            self._note(Record(item, due_s, exchange))
        if is_followed or self._unread_bytes + exchange.unread_bytes > _MOST_UNREAD_BYTES:
            exchange.settle()
        self._unread_bytes += exchange.unread_bytes
        return exchange

    def _note(self, record: Record) -> None:
        self.records.append(record)
        self._on_done(record)


def _end_of(record: Record) -> float:
    exchange = record.exchange
    if record.is_ok and exchange.last_s is not None:
        return exchange.last_s
    return exchange.closed_s or record.due_s


def _chains(items: Sequence[WorkItem]) -> list[Chain]:
    """Turns of one session together; the chains in the order in which their first turns come."""
    chains: list[Chain] = []
    of_session: dict[int, Chain] = {}
    for item in items:
        if item.session is not None and item.session in of_session:
            of_session[item.session].append(item)
            continue
        chain = [item]
        chains.append(chain)
        if item.session is not None:
            of_session[item.session] = chain
    return chains


async def _wait_until(moment_s: float) -> None:
    while (left_s := moment_s - time.perf_counter()) > 0:
        await asyncio.sleep(max(0.0, left_s - _WATCHED_S))
