"""What the memory view answers about the pool, its requests and its blocks."""

import asyncio
import time

import numpy as np
import pytest
from feed_case import GROUPS
from live_feed import endless, use_feed
from toy import ToyEngine, random_prompts, toy_text

from octavo.paging.groups import GroupSpec
from octavo.server.registry import ServedRequest


def test_many_who_ask_share_looks():
    toy = ToyEngine(num_blocks=600, context_len=4096)
    looks = []

    async def use(state) -> None:
        await state.feed.stop()  # its own looks come when it is time for them
        inspect = state.engine.inspect

        async def counted(what):
            looks.append(what)
            return await inspect(what)

        state.engine.inspect = counted
        state.feed._look_s = 0.0004
        stream = await state.engine.stream([1, 2], endless(4000))
        answers = [await asyncio.gather(*(state.memory.whole() for _ in range(50))) for _ in range(5)]
        assert len(looks) == 5
        assert {a["scheduler"]["num_running"] for a in answers[-1]} == {1}
        stream.close()
        await state.engine.drain()
        await state.memory.whole()
        before = len(looks)
        after = await asyncio.gather(*(state.memory.whole() for _ in range(50)))
        assert len(looks) == before  # nothing has happened since
        assert {a["pool"]["used_blocks"] for a in after} == {0}

    toy.model.hook = lambda inputs, logits: time.sleep(0.02)
    use_feed(toy, use)


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

    use_feed(toy, use)


def test_answers_about_requests_and_blocks():
    toy = ToyEngine(groups=[GroupSpec(8, None, 2), GroupSpec(16)], num_blocks=3000, context_len=4096)
    common = list(range(30))

    async def use(state) -> None:
        streams = []
        for i in range(2):
            streams.append(await state.engine.stream([*common, 40 + i], endless(4000)))
            ids = tuple(r.request_id for r in streams[-1].generation.requests)
            state.registry.add(ServedRequest(f"cmpl-{i}", "completions", "me", ids))
            while streams[-1].generation.num_output_tokens < 3:
                await asyncio.sleep(0.001)
        whole = await state.memory.whole()
        pool = whole["pool"]
        assert (
            pool["total_blocks"] == 2999 == pool["used_blocks"] + pool["free_blocks"] + pool["cached_blocks"]
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

    toy.model.hook = lambda inputs, logits: time.sleep(0.005)
    use_feed(toy, use)


@pytest.mark.parametrize("seed", range(3))
def test_every_block_tells_the_tokens_that_are_in_it(seed, monkeypatch):
    """Against the toy's own memory: the slots of a block hold hashes of exactly these tokens."""
    monkeypatch.setattr("octavo.server.memory.feed.MAX_LOOK_SHARE", 1.0)  # a question for each step or two
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

    toy.model.hook = lambda inputs, logits: time.sleep(0.005)
    use_feed(toy, use)
