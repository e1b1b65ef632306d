"""How a server is asked: its models, keys, fields that it refuses, and its memory."""

import asyncio

import fake_openai
import pytest
from fake_openai import FakeServer
from loading import load, some

from octavo.bench.load.memory_use import MemoryWatch, watch_memory
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.load.target import MemoryFacts
from octavo.core.errors import OctavoError


def test_fields_that_a_server_refuses_are_left_out():
    result, fake = load(some(2), forbidden=("ignore_eos",))
    assert result.is_complete
    assert all("ignore_eos" not in a.body and "stream_options" in a.body for a in fake.asked)
    result, fake = load(some(2), forbidden=("stream_options",))
    assert all(a.body["ignore_eos"] and "stream_options" not in a.body for a in fake.asked)
    result, fake = load(some(2), forbidden=("stream_options", "ignore_eos"))
    assert all(not {"ignore_eos", "stream_options"} & set(a.body) for a in fake.asked)
    _, fake = load(some(2), options=ServerOptions(ignore_eos=False))
    assert all("ignore_eos" not in a.body for a in fake.asked)
    with pytest.raises(OctavoError, match="small request: http 400: unknown field ignore_eos"):
        load(some(2), forbidden=("ignore_eos",), options=ServerOptions(ignore_eos=True))


def test_keys_models_and_more_fields():
    options = ServerOptions(api_key="sesame", model="b", body={"top_k": 3, "temperature": 1})
    _, fake = load(some(1), models=("a", "b"), options=options)
    asked = fake.asked[0]
    assert asked.headers["authorization"] == "Bearer sesame"
    assert (asked.body["model"], asked.body["top_k"], asked.body["temperature"]) == ("b", 3, 1)
    with pytest.raises(OctavoError, match="2 models; choose with --model-name: a, b"):
        load(some(1), models=("a", "b"))
    with pytest.raises(OctavoError, match="no model"):
        load(some(1), models=())
    with pytest.raises(OctavoError, match="cannot reach"):
        asyncio.run(OpenAITarget("http://127.0.0.1:1", ServerOptions()).open())


@pytest.mark.parametrize("told", [[], {"data": None}, {"data": "fake"}, {"data": [5, None, {}]}, 7], ids=repr)
def test_odd_lists_of_models(monkeypatch, told):
    def look_up(self, path, writer):
        fake_openai._send(writer, 200, told)
        return True

    monkeypatch.setattr(FakeServer, "_look_up", look_up)
    with pytest.raises(OctavoError, match="has no model; name one with --model-name"):
        load(some(1))


def watched(memory):
    """What is seen of a server's memory while nothing is asked of it."""

    async def run():
        async with FakeServer(memory=memory) as fake:
            target = OpenAITarget(fake.url, ServerOptions())
            await target.open()
            async with watch_memory(target) as watch:
                pass
            await target.close()
            return watch.as_dict()

    return asyncio.run(run())


def test_memory_is_watched():
    state = {"used": 0, "peak": 50}

    def memory():
        state["used"] += 10
        state["peak"] = max(state["peak"], state["used"])
        pool = {"used_blocks": state["used"], "total_blocks": 100, "block_bytes": 1000, "waste": 0.25}
        pool |= {"query_tokens": state["used"] * 2, "hit_tokens": state["used"]}
        return {"pool": pool, "scheduler": {"peak_blocks": state["peak"], "num_preemptions": state["used"]}}

    def run(start):
        state.update(used=start, peak=50)
        return watched(memory)

    found = run(0)  # asked when opened, before, and after: 10, 20, 30
    assert found == {
        "peak_blocks": 30,
        "peak_is_exact": False,
        "peak_bytes": 30_000,
        "peak_fraction": 0.3,
        "total_blocks": 100,
        "block_bytes": 1000,
        "waste_mean": 0.25,
        "waste_max": 0.25,
        "preemptions": 10,
        "hit_rate": 0.5,
    }
    found = run(60)
    assert (found["peak_blocks"], found["peak_is_exact"]) == (90, True)


def facts(used):
    return MemoryFacts(
        used_blocks=used,
        total_blocks=100,
        block_bytes=1000,
        waste=0.25,
        peak_blocks=50,
        num_preemptions=0,
        query_tokens=0,
        hit_tokens=0,
    )


def test_a_peak_that_nobody_saw_is_not_zero():
    watch = MemoryWatch()
    watch.begin(facts(0))
    watch.see(facts(0))
    watch.end(facts(0))
    found = watch.as_dict()
    names = ("peak_blocks", "peak_bytes", "peak_fraction", "waste_mean", "waste_max")
    assert [found[name] for name in names] == [None] * 5
    watch.see(facts(7))
    assert watch.as_dict()["peak_bytes"] == 7000


def test_a_run_is_looked_at_soon_and_then_from_time_to_time(monkeypatch):
    pauses = []
    enough = asyncio.Event()

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 7:
            enough.set()
            await asyncio.Event().wait()  # for ever: cancelled when the run is over

    class Target:
        async def memory(self):
            return facts(len(pauses))

        def watch(self, see):
            return False

    async def run():
        async with watch_memory(Target()) as watch:
            await enough.wait()
        return watch.as_dict()

    monkeypatch.setattr("octavo.bench.load.memory_use.asyncio.sleep", sleep)
    assert asyncio.run(run())["peak_blocks"] == 7
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("told", [None, {"pool": 5}, {"pool": {"used_blocks": "many"}, "scheduler": {}}])
def test_a_server_without_memory_view(told):
    assert watched(lambda: told) is None
