"""A B C, C B A, ...: every contestant gets alike requests in every round, one works at a time.

A machine that others use too is faster in one minute than in the next. In turns, all see the same minutes,
and the ratio of two contestants within a round hardly depends on them.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from octavo.bench.compare.contestant import Contestant, Running, told_of
from octavo.bench.compare.turns import Contents, order_of
from octavo.bench.experiment import Progress
from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.exchange import INTERRUPTED, TIMEOUT
from octavo.bench.load.generator import Record, run_load
from octavo.bench.load.openai_target import ServerOptions
from octavo.bench.metrics.slo import Slo
from octavo.bench.metrics.summary import summarize
from octavo.bench.workloads.item import WorkItem
from octavo.core.errors import InvalidConfig, OctavoError
from octavo.core.units import format_bytes
from octavo.engine.machine import available_memory

_FLOOR_BYTES: Final = 3 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """How often, and when memory is short.

    Attributes:
        asking: how all are asked: the endpoint, whether end tokens are ignored, the time for a request.
        warm_up: requests after each start that do not count; None is a whole repeat.
        floor_bytes: with less memory available than this, a contestant does not stay while others work: it is
            started anew in every round.

    Raises:
        InvalidConfig: a value out of range.
    """

    rounds: int = 6
    warm_up: int | None = None
    slo: Slo | None = None
    asking: ServerOptions = field(default_factory=ServerOptions)
    floor_bytes: int = _FLOOR_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= 1000:
            raise InvalidConfig(f"rounds={self.rounds}: must be from 1 to 1000")
        if self.warm_up is not None and self.warm_up < 0:
            raise InvalidConfig(f"warm_up={self.warm_up}: must not be negative")

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        return {
            "rounds": self.rounds,
            "warm_up": self.warm_up,
            "slo": None if self.slo is None else self.slo.as_dict(),
        }


@dataclass(slots=True)
class Side:
    """A contestant and what was found of it.

    Attributes:
        place: in the list of contestants.
        rounds: a summary for each round, None where it did not take part. With ``asked_tokens``, the output
            tokens wanted of the requests that were answered, and ``last_due_s``, when the last request was
            due, from the beginning of the round.
        starts_s: how long each start took.
        failure: why it takes part no more.
        is_restarted: memory is short, so it starts in every round.
    """

    contestant: Contestant
    place: int
    rounds: list[dict[str, Any] | None] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    peak_rss_bytes: int | None = None
    told: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    is_restarted: bool = False
    running: Running | None = None

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        runs_at = self.contestant.runs_at
        return {
            **self.contestant.facts.as_dict(),
            "ran_before": runs_at is not None,
            "url": None if runs_at is None else str(runs_at),
            "told": self.told,
            "starts_s": [round(seconds, 3) for seconds in self.starts_s],
            "peak_rss_bytes": self.peak_rss_bytes,
            "is_restarted": self.is_restarted,
            "failure": self.failure,
            "rounds": self.rounds,
        }


async def run_rounds(
    contestants: Sequence[Contestant],
    contents: Contents,
    plan: ArrivalPlan,
    settings: CompareSettings,
    *,
    progress: Progress,
    stop: asyncio.Event,
    between_rounds: Callable[[], None] = lambda: None,
) -> list[Side]:
    """Start all, warm all up, then give them turns, for as long as there are two to compare.

    Args:
        contents: of these contestants.
        stop: when set, it ends after what runs; what there is comes back.
        between_rounds: called before each round, when all rest.

    Raises:
        InvalidConfig: two have the same name, or one cannot be asked in this way.
    """
    _check(contestants, settings.asking)
    sides = [Side(contestant, place) for place, contestant in enumerate(contestants)]
    match = _Match(contents, plan, settings, progress, stop)

    def is_over() -> bool:
        left = sum(side.failure is None for side in sides)
        return stop.is_set() or left < min(2, len(sides))

    try:
        # All are started before anything is measured: one that is not there is known at once.
        for prepare in (match.bring_in, match.warm_up):
            for side in sides:
                if not is_over():
                    await prepare(side)
        for number in range(settings.rounds):
            if is_over():
                break
            between_rounds()
            for place in order_of(number, len(sides)):
                found = None if stop.is_set() else await match.turn(sides[place], number)
                sides[place].rounds.append(found)
    finally:
        for side in sides:
            await _stop(side)
    return sides


def _check(contestants: Sequence[Contestant], asking: ServerOptions) -> None:
    names = [contestant.facts.name for contestant in contestants]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidConfig(f"two contestants are called {twice[0]}")
    if libraries := [each.facts.name for each in contestants if not each.is_server]:
        if asking.is_chat:
            raise InvalidConfig(f"{libraries[0]} has no chat endpoint: leave it out, or --chat")
        if asking.ignore_eos is False:
            raise InvalidConfig(f"{libraries[0]} always ignores end tokens: leave out --ignore-eos off")


@dataclass(frozen=True, slots=True)
class _Match:
    contents: Contents
    plan: ArrivalPlan
    settings: CompareSettings
    progress: Progress
    stop: asyncio.Event

    async def bring_in(self, side: Side) -> None:
        """Start it and let it rest, or end it again if there is no room for it."""
        await self._start(side)
        await self._rest(side)

    async def warm_up(self, side: Side) -> None:
        """Before its first turn; one that is started in every round is warmed up then."""
        if side.running is not None:
            side.running.wake()
            await self._warm_up(side)
            await self._rest(side)

    async def turn(self, side: Side, number: int) -> dict[str, Any] | None:
        """One round of one contestant."""
        if side.failure is not None:
            return None
        if side.running is None:
            await self._start(side)
            await self._warm_up(side)
        if side.running is None:
            return None
        items = self.contents.of_round(number, side.place)
        side.running.wake()
        name = f"Round {number + 1} of {self.settings.rounds}: {side.contestant.facts.name}"
        found = await self._load(side, items, self.plan.of_repeat(number), name)
        await self._unless_silent(side, found, f"round {number + 1}")
        await self._rest(side)
        return found

    async def _start(self, side: Side) -> None:
        name = side.contestant.facts.name
        self.progress.begin(f"Starting {name}", 1)
        starting = asyncio.ensure_future(side.contestant.start(self.settings.asking))
        stopping = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return
            side.running = starting.result()
        except OctavoError as error:
            side.failure = f"does not start: {error}"
            return
        finally:
            stopping.cancel()
            starting.cancel()  # which ends what it started
            await asyncio.gather(starting, stopping, return_exceptions=True)
        if side.running.start_s is not None:
            side.starts_s.append(side.running.start_s)
        side.told = told_of(side.running.target)

    async def _warm_up(self, side: Side) -> None:
        items = self.contents.of_warm_up(side.place)[: self.settings.warm_up]
        if side.running is not None and items:
            found = await self._load(side, items, self.plan, f"Warming up {side.contestant.facts.name}")
            await self._unless_silent(side, found, "warm-up")

    async def _rest(self, side: Side) -> None:
        """Others work now. It ends if it cannot stay beside them."""
        if side.running is None:
            return
        side.peak_rss_bytes = _most(side.peak_rss_bytes, side.running.peak_rss_bytes())
        side.running.rest()
        side.is_restarted = side.is_restarted or available_memory() < self.settings.floor_bytes
        if side.is_restarted:
            await _stop(side)

    async def _unless_silent(self, side: Side, found: dict[str, Any], when: str) -> None:
        """One that answers nothing drops out."""
        if not found["requests"]["ok"] and not self.stop.is_set():
            side.failure = f"{when}: {_reason(found)}"
            await _stop(side)

    async def _load(self, side: Side, items: list[WorkItem], plan: ArrivalPlan, name: str) -> dict[str, Any]:
        """Its requests; the first that times out ends them, as the round no longer counts."""
        assert side.running is not None
        self.progress.begin(name, len(items))
        ended = asyncio.Event()

        async def watch() -> None:
            await self.stop.wait()
            ended.set()

        def on_done(record: Record) -> None:
            self.progress.done(record)
            if record.exchange.failure == TIMEOUT:
                ended.set()

        watching = asyncio.create_task(watch())
        try:
            result = await run_load(side.running.target, items, plan, stop=ended, on_done=on_done)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return {
            **summarize(result, self.settings.slo),
            "asked_tokens": sum(each.item.max_tokens for each in result.records if each.is_ok),
            "last_due_s": max((each.due_s for each in result.records), default=result.start_s)
            - result.start_s,
        }


async def _stop(side: Side) -> None:
    if side.running is None:
        return
    side.peak_rss_bytes = _most(side.peak_rss_bytes, side.running.peak_rss_bytes())
    running, side.running = side.running, None
    await running.stop()


def _most(a: int | None, b: int | None) -> int | None:
    return max((value for value in (a, b) if value is not None), default=None)


def _reason(found: dict[str, Any]) -> str:
    for reason, told in found["failures"].items():
        if reason == INTERRUPTED:  # with the first that timed out
            continue
        return f"{reason}: {told['example']}" if told["example"] else str(reason)
    return "no request was answered"


def restarted_note(side: Side) -> str:
    """Why a contestant was started in every round."""
    return (
        f"{side.contestant.facts.name} was started in every round, as less than "
        f"{format_bytes(_FLOOR_BYTES)} of memory were left beside the others."
    )
