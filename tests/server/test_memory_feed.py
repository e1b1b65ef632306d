"""The memory feed: frames that add up to the census, a bounded past, streams, and the routes over HTTP."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from feed_case import FeedReader, ToyLLM, arranged, assert_same, census_rows, facts_of
from toy import ToyEngine, random_prompts, toy_text

from octavo import LLM
from octavo.core.sampling import SamplingParams
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.block_map import look
from octavo.paging.groups import GroupSpec
from octavo.server.memory.activity import MAX_STEPS_TOLD, Activity, StepRecord, merged
from octavo.server.memory.blocks import BlockRows
from octavo.server.memory.feed import FeedState, MemoryFeed, timed_look
from octavo.server.memory.history import Change, History
from octavo.server.memory.report import MemoryReporter, PoolFacts
from octavo.server.registry import RequestRegistry, ServedRequest
from octavo.server.routes.memory import router
from octavo.server.telemetry.observers import Observers

GROUPS = {
    "one group": [GroupSpec(8)],
    "several tables": [GroupSpec(16, None, 2), GroupSpec(8)],
    "a window": [GroupSpec(8, 20), GroupSpec(8, None, 3)],
}
ENDLESS = {"ignore_eos": True}


def state_of(toy: ToyEngine, **options) -> FeedState:
    activity = Activity()
    toy.engine.observer = activity
    return FeedState(toy.kv.pool.num_blocks, activity=activity, registry=RequestRegistry(), **options)


def busy(toy: ToyEngine, seed: int):
    """Steps of an engine with samples, beams, aborts and a pool too small for all."""
    rng = np.random.default_rng(seed)
    live = []
    for prompt in random_prompts(30, seed=seed, longest=50):
        params = {"max_tokens": int(rng.integers(1, 40)), **ENDLESS}
        kind = rng.random()
        if kind < 0.2:
            params |= {"n": 3, "temperature": 1.0, "seed": 1}
        elif kind < 0.3:
            params |= {"n": 2, "use_beam_search": True}
        live.append(toy.submit(prompt, **params))
        for _ in range(int(rng.integers(0, 6))):
            if toy.engine.has_work:
                toy.step()
                yield
        if rng.random() < 0.2:
            toy.engine.abort(live[int(rng.integers(len(live)))])
            yield
    while toy.engine.has_work:
        toy.step()
        yield


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("seed", range(3))
def test_frames_add_up_to_the_census(groups, seed):
    toy = ToyEngine(groups=groups, num_blocks=90, max_num_seqs=6)
    state, every, seldom, late = state_of(toy), FeedReader(), FeedReader(), FeedReader()
    seen_by_seldom, at, states = 0, 1000.0, set()
    for moment in busy(toy, seed):
        assert moment is None
        at += 1
        state.update(timed_look(toy.engine), at)
        truth = census_rows(toy)
        every.apply(state.frame)
        assert_same(every.rows, truth)
        states |= set(truth.states[1:].tolist())
        if state.number % 7 == 1:  # one that misses frames
            seldom.apply(state.frame_since(seen_by_seldom))
            seen_by_seldom = state.number
            assert_same(seldom.rows, truth)
    assert states == {0, 1, 2, 3}
    assert [f["full"] for f in every.frames] == [True] + [False] * (len(every.frames) - 1)
    for frame in state.history.frames():
        late.apply(frame)
    assert_same(late.rows, census_rows(toy))
    times = [frame["t"] for frame in late.frames]
    assert times == sorted(times)
    assert times[-1] == at


def test_ages_say_since_when_a_block_is_as_it_is():
    toy = ToyEngine(num_blocks=40)
    state = state_of(toy)
    since = np.full(40, 100.0)
    before = None
    for step, _ in enumerate(busy(toy, 5)):
        at = 100.0 + step
        state.update(timed_look(toy.engine), at)
        now = census_rows(toy)
        if before is not None:
            since[now.differing(before)] = at
        before = now
    reader = FeedReader()
    reader.apply(state.frame_since(-1))
    np.testing.assert_allclose(reader.ages, (at - since)[1:])


def test_a_copy_in_flight_is_pinned():
    toy = ToyEngine(num_blocks=40, block_size=8)
    toy.submit([1, 2, 3], n=2, temperature=1.0, seed=1, max_tokens=9, **ENDLESS)
    toy.step()
    plan = toy.scheduler.schedule()
    assert plan.copies
    rows = arranged(toy, look(toy.engine))
    assert {i for pair in plan.copies for i in pair} == set(np.flatnonzero(rows.states == 4).tolist())
    toy.scheduler.commit(toy.engine.runner.run(plan))
    assert not (arranged(toy, look(toy.engine)).states == 4).any()


def test_requests_of_a_frame():
    toy = ToyEngine(num_blocks=200, max_num_seqs=2)
    state = state_of(toy)
    common = list(range(16))
    one = toy.submit([*common, 20], max_tokens=30, **ENDLESS)
    toy.step()
    two = toy.submit([*common, 21], max_tokens=30, **ENDLESS)
    toy.step()
    three = toy.submit([*common, 22], max_tokens=30, n=2, temperature=1.0, **ENDLESS)
    toy.step()
    state.update(timed_look(toy.engine), 1.0)
    frame = json.loads(state.frame)
    ids = [g.request.request_id for g in (one, two, three)]
    assert [r["request_id"] for r in frame["requests"]] == [*ids, ids[2] + 1]
    assert [r["state"] for r in frame["requests"]] == ["running", "running", "waiting", "waiting"]
    assert frame["num_requests"] == 4
    assert [r["num_shared_blocks"] for r in frame["requests"]] == [2, 2, 0, 0]
    assert [r["num_blocks"] for r in frame["requests"]] == [3, 3, 0, 0]
    assert frame["requests"][1]["num_cached_tokens"] == 16
    assert all(r["age_s"] >= 0 for r in frame["requests"])
    stats = toy.kv.stats()
    assert frame["stats"]["shared_blocks"] == stats.shared_blocks == 2
    assert frame["stats"]["waste"] == pytest.approx(stats.waste, abs=1e-6)


def test_no_more_than_256_requests_and_all_are_counted():
    toy = ToyEngine(num_blocks=2000, max_num_seqs=16)
    state = state_of(toy)
    for i in range(400):
        toy.submit([i % 50, 1], max_tokens=5, **ENDLESS)
    toy.step()
    state.update(timed_look(toy.engine), 1.0)
    frame = json.loads(state.frame)
    assert len(frame["requests"]) == 256
    assert frame["num_requests"] == 400


def test_steps_and_rates():
    toy = ToyEngine()
    state = state_of(toy)
    state.update(timed_look(toy.engine), 1.0)
    toy.submit(list(range(10)), max_tokens=100, **ENDLESS)
    toy.submit(list(range(20, 25)), max_tokens=100, **ENDLESS)
    for _ in range(50):
        toy.step()
    state.update(timed_look(toy.engine), 2.0)
    frame = json.loads(state.frame)
    steps = np.array([step[2:] for step in frame["steps"]])
    assert steps.sum(axis=0).tolist() == [100, 15, 98, 0]
    assert frame["stats"]["ttft_s"] > 0
    assert frame["stats"]["tokens_per_s"] / frame["stats"]["prompt_tokens_per_s"] == pytest.approx(
        100 / 15, rel=1e-3
    )
    for _ in range(10):
        toy.step()
    state.update(timed_look(toy.engine), 3.0)
    assert len(json.loads(state.frame)["steps"]) == 10
    assert json.loads(state.frame)["stats"]["ttft_s"] is None
    # Who missed a frame is told of all steps in between.
    both = json.loads(state.frame_since(1))
    assert np.array([step[2:] for step in both["steps"]]).sum(axis=0).tolist() == [120, 15, 118, 0]
    assert both["stats"]["ttft_s"] == frame["stats"]["ttft_s"]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000])
def test_many_steps_are_merged(count):
    steps = [StepRecord(float(i), 0.5, 3, i, 2, 1) for i in range(count)]
    told = merged(steps)
    assert len(told) <= MAX_STEPS_TOLD
    assert sum(s.num_prompt_tokens for s in told) == sum(range(count))
    assert sum(s.duration_s for s in told) == 0.5 * count
    assert {s.num_rows for s in told} == {3}
    assert told[-1].finished_s == count - 1


class TestHistory:
    def rows(self, *states: int) -> BlockRows:
        rows = BlockRows.empty(len(states))
        rows.states[:] = states
        return rows

    def history(self, **options) -> History:
        frame = json.dumps({"t": 0.0, "total": 3, "full": True, "cost": 0, "requests": ["first"]})
        return History(self.rows(0, 0, 1, 2), 0.0, frame, **options)

    def add(self, history: History, t: float, block_id: int, state: int) -> None:
        ids = np.array([block_id], np.int32)
        frame = {"t": t, "total": 3, "full": False, "ids": "", "cost": t, "requests": [str(t)]}
        frame |= dict.fromkeys(("states", "owners", "refs"), "")
        history.add(Change(t, ids, self.rows(state)), json.dumps(frame))

    def test_the_key_frame_moves_along(self):
        history = self.history(past_s=10.0)
        for t in range(1, 31):
            self.add(history, float(t), 1 + t % 3, t % 4)
        frames = list(history.frames())
        assert len(frames) == len(history) == 12
        reader = FeedReader()
        key = reader.apply(frames[0])
        assert key["full"]
        assert key["t"] == 19.0
        assert key["requests"] == ["19.0"]
        assert reader.rows.states[1:].tolist() == [18 % 4, 19 % 4, 17 % 4]
        assert reader.ages.tolist() == [1.0, 0.0, 2.0]
        assert [json.loads(f)["t"] for f in frames[1:]] == [float(t) for t in range(20, 31)]

    @pytest.mark.parametrize("after", [0.0, 4.0, 9.5, 20.0, 99.0])
    def test_less_of_the_past_is_the_end_of_it(self, after):
        history = self.history()
        whole, part = FeedReader(), FeedReader()
        for t in range(1, 31):
            self.add(history, float(t), 1 + t % 3, t % 4)
        for reader, frames in ((whole, history.frames()), (part, history.frames(after))):
            states = {}
            for text in frames:
                frame = json.loads(text)
                if not frame["full"]:  # the frames of this test say nothing of blocks
                    block_id, state = 1 + int(frame["t"]) % 3, int(frame["t"]) % 4
                    reader.rows.put(np.array([block_id]), self.rows(state))
                else:
                    reader.apply(text)
                states[frame["t"]] = reader.rows.states.tolist()
            reader.seen = states
        assert part.seen == {t: s for t, s in whole.seen.items() if t in part.seen}
        assert len(part.seen) == 1 + sum(t >= after for t in range(1, 31))

    def test_bytes_are_bounded(self):
        history = self.history(max_bytes=5000)
        for t in range(1, 200):
            self.add(history, 0.001 * t, 1, t % 4)
            assert history.num_bytes <= 5000
        assert 1 < len(history) < 20

    def test_whoever_reads_it_is_not_disturbed(self):
        history = self.history(past_s=5.0)
        for t in range(1, 4):
            self.add(history, float(t), 1, 3)
        frames = history.frames()
        for t in range(4, 100):
            self.add(history, float(t), 2, 3)
        assert [json.loads(f)["t"] for f in frames] == [0.0, 1.0, 2.0, 3.0]


# Under asyncio


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


def run(toy: ToyEngine, use) -> None:
    async def whole() -> None:
        async with feeding(toy) as state:
            await asyncio.wait_for(use(state), 60)

    asyncio.run(whole())
    toy.engine.check_invariants()
    assert toy.engine.observer is not None


def endless(max_tokens: int, **params) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **params)


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
    run(toy, use)


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

    run(toy, use)


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

    run(ToyEngine(), use)


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

    run(ToyEngine(), use)


def test_many_who_ask_share_looks():
    toy = ToyEngine()
    looks = []

    async def use(state) -> None:
        inspect = state.engine.inspect

        async def counted(what):
            looks.append(time.monotonic())
            return await inspect(what)

        state.engine.inspect = counted
        state.feed._look_s = 0.0004
        stream = await state.engine.stream([1, 2], endless(250))
        before = len(looks)
        answers = [await asyncio.gather(*(state.memory.whole() for _ in range(50))) for _ in range(5)]
        assert len(looks) - before <= 30
        assert {a["scheduler"]["num_running"] for a in answers[-1]} == {1}
        stream.close()
        while toy.engine.has_work:
            await asyncio.sleep(0.01)
        await state.memory.whole()
        before = len(looks)
        after = await asyncio.gather(*(state.memory.whole() for _ in range(50)))
        assert len(looks) - before <= 2  # nothing has happened since, but for a frame of the rates
        assert {a["pool"]["used_blocks"] for a in after} == {0}

    toy.model.hook = lambda inputs, logits: time.sleep(0.02)
    run(toy, use)


def test_what_was_computed_and_let_go_between_two_looks_is_found():
    toy = ToyEngine()

    async def use(state) -> None:
        await state.feed.look_now()
        await state.engine.generate(list(range(20)), endless(2))
        state.feed.state.resolver._last_seen = [None] * 200
        ids = toy.kv.census().cached
        blocks = [await state.memory.block(block_id) for block_id in ids]
        assert sorted(b["position"] for b in blocks) == [0, 8]
        assert sorted(t for b in blocks for t in b["token_ids"]) == list(range(16))

    run(toy, use)


def test_answers_about_requests_and_blocks():
    toy = ToyEngine(groups=[GroupSpec(8, None, 2), GroupSpec(16)], num_blocks=300)
    common = list(range(30))

    async def use(state) -> None:
        streams = []
        for i in range(2):
            streams.append(await state.engine.stream([*common, 40 + i], endless(2000 // 10)))
            ids = tuple(r.request_id for r in streams[-1].generation.requests)
            state.registry.add(ServedRequest(f"cmpl-{i}", "completions", "me", ids))
            while streams[-1].generation.num_output_tokens < 3:
                await asyncio.sleep(0.001)
        whole = await state.memory.whole()
        pool = whole["pool"]
        assert (
            pool["total_blocks"] == 299 == pool["used_blocks"] + pool["free_blocks"] + pool["cached_blocks"]
        )
        assert pool["block_sizes"] == [8, 16]
        assert [r["response_id"] for r in whole["requests"]] == ["cmpl-0", "cmpl-1"]
        assert [g["num_tables"] for g in whole["groups"]] == [2, 1]
        assert whole["scheduler"]["num_running"] == 2

        one, two = [await state.memory.request(f"cmpl-{i}") for i in range(2)]
        assert one["block_sizes"] == [8, 8, 16]
        assert [len(t) > 2 for t in one["tables"]] == [True] * 3
        # 30 common tokens: three whole blocks of 8 in two tables, one of 16.
        assert one["shared_with"] == [
            {"request_id": two["request_id"], "response_id": "cmpl-1", "num_blocks": 7}
        ]
        assert one["tables"][0][:3] == two["tables"][0][:3]
        assert two["prefix"]["num_cached"] >= 24
        assert "cached" in two["prefix"]["text"]
        assert two == await state.memory.request(str(two["request_id"])) | {
            k: two[k] for k in two if k not in ("prefix", "response_id")
        }

        shared = await state.memory.block(one["tables"][1][2])
        assert (shared["state"], shared["ref_count"], shared["position"]) == ("shared", 2, 16)
        assert shared["owners"] == [one["request_id"], two["request_id"]]
        assert shared["token_ids"] == common[16:24]
        assert shared["text"] == toy_text(common[16:24])
        for stream in streams:
            stream.close()
        while toy.engine.has_work:
            await asyncio.sleep(0.001)
        cached = await state.memory.block(one["tables"][1][2])
        assert (cached["state"], cached["owners"], cached["position"]) == ("cached", [], 16)
        assert cached["token_ids"] == common[16:24]
        over = await state.memory.request("cmpl-1")
        assert (over["state"], over["tables"]) == ("finished", [])
        assert over["prefix"] == two["prefix"]
        assert await state.memory.request("cmpl-9") is None
        assert await state.memory.request("9999") is None

    toy.model.hook = lambda inputs, logits: time.sleep(0.001)
    run(toy, use)


@pytest.mark.parametrize("seed", range(3))
def test_every_block_tells_the_tokens_that_are_in_it(seed):
    """Against the toy's own memory: the slots of a block hold hashes of exactly these tokens."""
    toy = ToyEngine(groups=GROUPS["a window"], num_blocks=90, max_num_seqs=6)

    async def use(state) -> None:
        free = await state.memory.block(89)
        assert (free["state"], free["group"], free["token_ids"]) == ("free", None, [])
        tasks = [
            asyncio.create_task(state.engine.generate(p, endless(30))) for p in random_prompts(10, seed=seed)
        ]
        kinds = set()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)  # an answer may need no wait
            for block_id in range(1, 90, 7):
                block = await state.memory.block(block_id)
                kinds.add(block["state"])
                if block["token_ids"]:
                    assert len(block["token_ids"]) == block["num_tokens"] <= block["block_size"] == 8
                    assert block["position"] % 8 == 0
                if block["state"] == "free":
                    assert block["token_ids"] == []
                    assert block["group"] is None
        await asyncio.gather(*tasks)
        assert {"held", "cached"} <= kinds
        census = toy.kv.census()
        frames = {f: b for b in toy.kv.pool.cached_blocks() for f in b.frames}
        for block_id in census.cached:
            block = await state.memory.block(block_id)
            assert block["state"] == "cached"
            assert np.array(block["token_ids"], np.uint32).tobytes() == frames[block_id].node.tokens

    toy.model.hook = lambda inputs, logits: time.sleep(0.001)
    run(toy, use)


# Over HTTP


@asynccontextmanager
async def serving(state, *, settings=None):
    app = FastAPI()
    app.include_router(router)
    app.state.octavo = state
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        try:
            yield client
        finally:
            await state.feed.stop()
            server.should_exit = True
            await task


def test_the_routes():
    toy = ToyEngine(num_blocks=100)

    async def use(state) -> None:
        async with serving(state) as client:
            await state.engine.generate([1, 2, 3], endless(20))
            assert (await client.get("/v1/memory")).json()["pool"]["total_blocks"] == 99
            assert (await client.get("/v1/memory/requests/0")).json()["state"] == "finished"
            assert (await client.get("/v1/memory/requests/77")).status_code == 404
            assert (await client.get("/v1/memory/blocks/99")).json()["state"] in ("free", "cached")
            for block_id, status in ((0, 404), (100, 404), (-1, 404), (10**30, 404)):
                answer = await client.get(f"/v1/memory/blocks/{block_id}")
                assert answer.status_code == status
                assert "1 to 99" in answer.json()["detail"]
            for query in ("interval=0", "interval=nan", "interval=inf", "interval=11", "past=-1", "past=301"):
                answer = await client.get(f"/v1/memory/stream?{query}")
                assert answer.status_code == 422
            reader = FeedReader()
            async with client.stream("GET", "/v1/memory/stream?interval=0.1") as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                task = None
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        reader.apply(line[6:])
                        task = task or asyncio.create_task(state.engine.generate([4, 5], endless(50)))
                    if task is not None and task.done() and len(reader.frames) > 3:
                        break
            while state.feed._wanted:  # the server notices that the reader is gone
                await asyncio.sleep(0.01)

    run(toy, use)


def test_with_a_real_model(smollm2_path):
    async def use() -> None:
        with LLM(smollm2_path, kv_memory="64MiB") as llm:
            async with AsyncEngine(llm) as engine:
                registry = RequestRegistry()
                feed = MemoryFeed(engine, registry)
                llm.engine.observer = Observers(feed.activity)
                feed.start()
                memory = MemoryReporter(engine, feed, registry, facts=PoolFacts.of(llm), shows_tokens=True)
                prompt = "The ships of the line lay at anchor in the bay, " * 6
                streams = [await engine.stream(prompt + word, endless(500)) for word in ("and", "but")]
                reader = FeedReader()
                async for frame in feed.frames(0.1):
                    reader.apply(frame)
                    if reader.frames[-1]["stats"]["shared_blocks"] > 2:
                        break
                found = await memory.request(str(streams[1].generation.request.request_id))
                assert found["shared_with"][0]["num_blocks"] > 2
                block = await memory.block(found["tables"][0][1])
                assert block["state"] == "shared"
                assert block["text"] in prompt
                assert (await memory.whole())["pool"]["num_tokens"] == llm.capacity.num_tokens
                for stream in streams:
                    stream.close()
                await engine.drain()
                await feed.look_now()
                assert_same(
                    feed.state._rows,
                    census_rows(SimpleNamespace(kv=llm.engine.scheduler.kv, scheduler=llm.engine.scheduler)),
                )
                await feed.stop()

    asyncio.run(asyncio.wait_for(use(), 120))
