"""What the accuracy of the tool is measured with: the scripted server's log, and how errors are computed."""

import asyncio
import json
import sys
import time
from array import array
from pathlib import Path
from urllib.request import urlopen

import pytest
from fake_openai import Behaviour, FakeServer

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.exchange import BROKEN, Exchange
from octavo.bench.load.generator import Record, run_load
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.workloads.item import WorkItem
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import Synthetic

ONE_USER = ArrivalPlan(kind="closed", concurrency=1)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import tool_accuracy

    return tool_accuracy


@pytest.mark.parametrize("dribble", [None, 5])
def test_the_log_lies_between_what_was_sent_and_what_was_seen(dribble):
    async def run():
        async with FakeServer(lambda _: Behaviour(first_s=0.01, gap_s=0.002, dribble=dribble)) as fake:
            target = OpenAITarget(fake.url, ServerOptions(timeout_s=30))
            await target.open()
            items = Synthetic(num_requests=4, input_len=Fixed(3), output_len=Fixed(5)).items(0)
            plan = ArrivalPlan(kind="closed", concurrency=2)
            result = await run_load(target, items, plan, stop=asyncio.Event())
            await target.close()
            return result.records, fake.asked

    records, asked = asyncio.run(run())
    by_prompt = {json.dumps(each.body["prompt"]): each for each in asked}
    for record in records:
        exchange, logged = record.exchange, by_prompt[json.dumps(record.item.prompt.tolist())]
        assert exchange.sent_s < logged.arrived_s
        for number, (written_s, seen_s) in enumerate(zip(logged.written_s, exchange.chunk_s, strict=True)):
            assert logged.arrived_s + 0.01 + number * 0.002 <= written_s < seen_s


def test_the_log_is_handed_out(fake):
    server = fake()
    body = {"prompt": [5, 6], "max_tokens": 3}

    async def ask():
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        content = json.dumps(body).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(content))
        await writer.drain()
        await asyncio.sleep(0.01)
        half_s = time.perf_counter()
        writer.write(content)
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        return half_s

    half_s = asyncio.run(ask())
    with urlopen(f"{server.url}/log") as answer:
        (logged,) = json.load(answer)["asked"]
    (asked,) = server.asked
    assert logged == {"prompt": [5, 6], "arrived_s": asked.arrived_s, "written_s": asked.written_s}
    assert len(asked.written_s) == 3
    assert asked.arrived_s > half_s  # the body's end counts, not the head


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what arrives (SO_TIMESTAMPING)")
def test_a_request_has_come_before_a_busy_server_reads_it():
    async def run():
        async with FakeServer() as fake:
            reader, writer = await asyncio.open_connection(*fake.url.removeprefix("http://").split(":"))
            content = b'{"max_tokens": 1}'
            writer.write(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 17\r\n\r\n" + content)
            busy_s = time.perf_counter()
            time.sleep(0.02)  # the loop, which is the server's too, does nothing else
            await reader.readuntil(b"0\r\n\r\n")
            writer.close()
            return busy_s, fake.asked[0].arrived_s

    busy_s, arrived_s = asyncio.run(run())
    assert arrived_s < busy_s + 0.02


def answered(index, *, due_s, sent_s, seen_s):
    exchange = Exchange(sent_s=sent_s, chunk_s=seen_s, chunk_chars=[4] * len(seen_s))
    exchange.output_tokens = len(seen_s)
    return Record(WorkItem(index=index, prompt=array("i", [index]), max_tokens=len(seen_s)), due_s, exchange)


def log(*entries):
    """Of requests 0, 1, ..."""
    return {
        json.dumps([index]): {"arrived_s": arrived_s, "written_s": written_s}
        for index, (arrived_s, written_s) in enumerate(entries)
    }


def test_errors_are_those_of_each_request(tool):
    found = tool.errors([1.5, 3.0, 8.0], [1.0, 4.0, 8.0])
    assert found == pytest.approx(
        {"p50": 4.0, "error_p50": 0.0, "error_mean": 0.25 / 3, "error_p1": -0.245, "error_p99": 0.49}
    )


def test_a_late_server_is_no_error_of_the_tool(tool):
    """Told to begin after 1 s, the server does so after 2: the schedule is missed, and the tool is right."""
    scene = tool.Scene("late", 1.0, 0.5, ONE_USER, 1, output_len=3)
    records = [answered(0, due_s=10.0, sent_s=10.001, seen_s=[12.010, 12.515, 13.012])]
    found = tool.judge(scene, records, log((10.003, [12.003, 12.503, 13.003])))
    assert found["ok"]
    assert found["ttft_s"]["p50"] == pytest.approx(2.010)
    assert found["ttft_s"]["written"]["p50"] == pytest.approx(2.0)
    assert found["ttft_s"]["written"]["error_p50"] == pytest.approx(0.005)
    assert found["ttft_s"]["nominal"]["error_p50"] == pytest.approx(1.010)
    assert found["tpot_s"]["written"]["error_p50"] == pytest.approx(0.501 / 0.5 - 1)
    assert found["tpot_s"]["nominal"]["error_p50"] == pytest.approx(0.501 / 0.5 - 1)
    medians = {name: part["p50"] for name, part in found["parts"].items()}
    assert medians == pytest.approx(
        {
            "due_to_sent_s": 0.001,
            "sent_to_arrived_s": 0.002,
            "server_late_s": 1.0,
            "written_to_seen_s": 0.007,
        }
    )
    assert sum(medians.values()) == pytest.approx(found["ttft_s"]["p50"] - 1.0)


@pytest.mark.parametrize(
    "seen_s",
    [[11.03, 11.53, 12.03], [11.003, 11.515, 12.025], [11.003, 11.49, 11.98]],
    ids=["TTFT 3 % more", "TPOT 2.2 % more", "TPOT 2.3 % less"],
)
def test_a_tool_that_is_off_fails_even_where_the_schedule_is_kept(tool, seen_s):
    scene = tool.Scene("off", 1.0, 0.5, ONE_USER, 1, output_len=3)
    good = [answered(0, due_s=10.0, sent_s=10.0, seen_s=[11.003, 11.503, 12.003])]
    assert tool.judge(scene, good, log((10.0, [11.0, 11.5, 12.0])))["ok"]
    off = [answered(0, due_s=10.0, sent_s=10.0, seen_s=seen_s)]
    assert not tool.judge(scene, off, log((10.0, [11.0, 11.5, 12.0])))["ok"]


def test_a_server_that_was_quick_does_not_hide_a_slow_tool(tool):
    """By the schedule of 1 s all is well, but the server began after half of it."""
    scene = tool.Scene("quick", 1.0, 0.5, ONE_USER, 1, output_len=3)
    records = [answered(0, due_s=10.0, sent_s=10.0, seen_s=[11.0, 11.5, 12.0])]
    found = tool.judge(scene, records, log((10.0, [10.5, 11.0, 11.5])))
    assert found["ttft_s"]["nominal"]["error_p50"] == 0
    assert found["ttft_s"]["written"]["error_p50"] == 1
    assert not found["ok"]


def test_chunks_of_several_tokens(tool):
    """Of 8 tokens in chunks of 4, the first chunk's four take no time of TPOT."""
    scene = tool.Scene("chunks", 1.0, 0.5, ONE_USER, 1, output_len=8, tokens_per_chunk=4)
    record = answered(0, due_s=10.0, sent_s=10.0, seen_s=[11.0, 11.5])
    record.exchange.output_tokens = 8
    found = tool.judge(scene, [record], log((10.0, [11.0, 11.5])))
    assert found["tpot_s"]["written"]["p50"] == found["tpot_s"]["p50"] == 0.125


def test_a_request_that_failed_is_told(tool):
    scene = tool.Scene("broken", 1.0, 0.5, ONE_USER, 1)
    record = answered(0, due_s=10.0, sent_s=10.0, seen_s=[11.0])
    record.exchange.fail(BROKEN, "after one chunk")
    with pytest.raises(RuntimeError, match="broken: 1 failed, such as: stream broke off after one chunk"):
        tool.judge(scene, [record], log((10.0, [11.0])))
