"""A toy engine under asyncio whose memory is watched, as in a server."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

from feed_case import ToyLLM, facts_of
from toy import ToyEngine

from octavo.core.sampling import SamplingParams
from octavo.engine.async_engine import AsyncEngine
from octavo.server.memory.feed import MemoryFeed
from octavo.server.memory.report import MemoryReporter
from octavo.server.registry import RequestRegistry
from octavo.server.telemetry.observers import Observers


@asynccontextmanager
async def feeding(toy: ToyEngine):
    async with AsyncEngine(ToyLLM(toy)) as engine:
        registry = RequestRegistry()
        feed = MemoryFeed(engine, registry)
        toy.engine.observer = Observers(feed.activity)
        feed.start()
        try:
            yield SimpleNamespace(
                engine=engine,
                feed=feed,
                registry=registry,
                memory=MemoryReporter(engine, feed, registry, facts=facts_of(toy), shows_tokens=True),
            )
        finally:
            await feed.stop()


def use_feed(toy: ToyEngine, use) -> None:
    """Run ``await use(state)`` with the engine, its feed, its registry and its memory view in ``state``."""

    async def whole() -> None:
        async with feeding(toy) as state:
            await asyncio.wait_for(use(state), 60)

    asyncio.run(whole())
    toy.engine.check_invariants()
    assert toy.engine.observer is not None


def endless(max_tokens: int, **params) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **params)
