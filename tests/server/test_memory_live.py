"""The memory feed while an engine runs: streams, and how often it looks."""

import asyncio
import json
import time

import pytest
from feed_case import FeedReader, census_rows
from live_feed import endless, use_feed
from toy import ToyEngine, random_prompts


def test_live_frames_while_requests_run():
    toy = ToyEngine(num_blocks=500)

    async def watch(state, reader: FeedReader, interval_s: float) -> None:
        async for frame in state.feed.frames(interval_s):
            reader.apply(frame)

    async def use(state) -> None:
        readers = [FeedReader(), FeedReader()]
        tasks = [asyncio.create_task(watch(state, r, s)) for r, s in zip(readers, (0.1, 0.3), strict=True)]
        await asyncio.gather(*(state.engine.generate(p, endless(200)) for p in random_prompts(12, seed=3)))
        await state.feed.look_now()
        truth = census_rows(toy)
        late = FeedReader()
        tasks.append(asyncio.create_task(watch(state, late, 0.1)))
        for reader in (*readers, late):
            while reader.rows is None or len(reader.rows.differing(truth)):
                await asyncio.sleep(0.02)
            assert reader.frames[0]["full"]
        assert sum(sum(s[3:]) for f in late.frames for s in f["steps"]) == sum(toy.model.step_sizes)
        await state.feed.stop()
        await asyncio.gather(*tasks)  # streams end

    toy.model.hook = lambda inputs, logits: time.sleep(0.002)
    use_feed(toy, use)


def test_nothing_is_looked_at_while_nothing_happens(monkeypatch):
    monkeypatch.setattr("octavo.server.memory.feed.HEARTBEAT_S", 0.2)
    toy = ToyEngine()

    async def use(state) -> None:
        reader = FeedReader()

        async def watch() -> None:
            async for frame in state.feed.frames(0.1):
                reader.apply(frame)

        task = asyncio.create_task(watch())
        await state.engine.generate([1, 2, 3], endless(5))
        while (
            not (state.feed.state.number and state.feed.state.is_settled and len(reader.frames) > 2)
            or state.feed.activity.num_events != state.feed._framed_events
        ):
            await asyncio.sleep(0.05)
        number, seen = state.feed.state.number, len(reader.frames)
        while len(reader.frames) < seen + 4:
            await asyncio.sleep(0.05)
        assert state.feed.state.number == number
        for frame in reader.frames[seen + 1 :]:
            assert (frame["full"], frame["ids"], frame["steps"]) == (False, "", [])
        times = [frame["t"] for frame in reader.frames]
        assert times == sorted(times)
        task.cancel()

    use_feed(toy, use)


def test_time_never_runs_back(monkeypatch):
    """A sign of life may be sent while a look, which began before it, is still on its way."""
    monkeypatch.setattr("octavo.server.memory.feed.HEARTBEAT_S", 0.05)

    async def use(state) -> None:
        while not state.feed.state.number:  # its own look; another comes when something has happened
            await asyncio.sleep(0.01)
        inspect = state.engine.inspect
        stream = state.feed.frames(0.1, past_s=0.0)
        times = [json.loads(await anext(stream))["t"]]

        async def overtaken(what):
            seen = await inspect(what)
            times.append(json.loads(await anext(stream))["t"])
            return seen

        state.engine.inspect = overtaken
        await state.feed.look_now()
        state.engine.inspect = inspect
        times.append(json.loads(await anext(stream))["t"])
        assert times == sorted(times)
        await stream.aclose()

    use_feed(ToyEngine(), use)


def test_looks_come_less_often_when_they_are_dear():
    async def use(state) -> None:
        feed = state.feed
        assert feed.interval_s == 0.5
        feed._look_s = 0.008
        assert feed.interval_s == pytest.approx(2.0)
        feed._look_s = 0.0001
        stream = feed.frames(0.1)
        await anext(stream)
        assert feed.interval_s == 0.1
        await stream.aclose()
        assert feed.interval_s == 0.5

    use_feed(ToyEngine(), use)


def test_a_feed_can_be_started_again():
    async def use(state) -> None:
        await state.feed.stop()
        assert [frame async for frame in state.feed.frames(0.1)] == []  # nothing was seen yet
        state.feed.start()
        await state.engine.generate([1, 2, 3], endless(5))
        stream = state.feed.frames(0.1)
        assert json.loads(await anext(stream))["full"]
        await state.feed.stop()
        assert all(not json.loads(frame)["full"] for frame in [f async for f in stream])

    use_feed(ToyEngine(), use)
