"""The routes of the memory view over HTTP, and the whole of it with a real model."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
import uvicorn
from fastapi import FastAPI
from feed_case import FeedReader, assert_same, census_rows
from live_feed import endless, use_feed
from toy import ToyEngine

from octavo import LLM
from octavo.engine.async_engine import AsyncEngine
from octavo.server.memory.feed import MemoryFeed
from octavo.server.memory.report import MemoryReporter, PoolFacts
from octavo.server.registry import RequestRegistry
from octavo.server.routes.memory import router
from octavo.server.telemetry.observers import Observers


@asynccontextmanager
async def serving(state):
    app = FastAPI()
    app.include_router(router)
    app.state.octavo = state
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
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

    use_feed(toy, use)


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
                streams = [await engine.stream(prompt + word, endless(1300)) for word in ("and", "but")]
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
