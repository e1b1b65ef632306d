"""Comparisons: turns, ratios, contestants that fail; programs that are started, frozen and ended."""

import asyncio
import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
from fake_openai import Behaviour
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo.bench.compare.comparison import Ceilings, compare
from octavo.bench.compare.contestant import AtUrl, Facts
from octavo.bench.compare.program import Program, read_program, write_program
from octavo.bench.compare.ratios import metric_of, ratio
from octavo.bench.compare.report import contestant_fact, document
from octavo.bench.compare.rounds import CompareSettings
from octavo.bench.compare.scenes import SCENES, Task, as_task, parse_scenes
from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.exchange import BROKEN, REFUSED, Exchange
from octavo.bench.load.openai_target import ServerOptions
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import Synthetic
from octavo.core.errors import InvalidConfig, OctavoError

HERE = Path(__file__).parent
TASK = Task(
    workload=Synthetic(num_requests=3, input_len=Fixed(4), output_len=Fixed(5)),
    plan=ArrivalPlan(kind="at-once"),
)

SERVER = f"""
import asyncio, sys
sys.path.insert(0, {str(HERE)!r})
from fake_openai import FakeServer

async def main():
    await asyncio.start_server(FakeServer()._serve, "127.0.0.1", int(sys.argv[1]))
    await asyncio.Event().wait()

asyncio.run(main())
"""

DRIVER = """
import json, os, sys, time

with open(sys.argv[1], "a") as starts:
    starts.write(f"{os.getpid()}\\n")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["prompt"] == "die":
        sys.exit(3)
    if asked["prompt"] == "refuse":
        print(json.dumps({"id": asked["id"], "error": "not in the mood"}), flush=True)
        continue
    print("a library says hello", flush=True)
    now = time.perf_counter()
    chunks = [[now + i, 1] for i in range(asked["max_tokens"])]
    print(json.dumps({"id": asked["id"], "chunks": chunks, "prompt_tokens": 4}), flush=True)
"""


class Silent:
    def begin(self, name, num_requests): ...

    def done(self, record): ...


def run(contestants, *, task=TASK, **settings):
    """Compare; gives the parts of a report."""

    async def go():
        how = CompareSettings(**settings)
        stop = asyncio.Event()
        return await compare(lambda _: contestants, [task], how, progress=Silent(), stop=stop)

    return asyncio.run(asyncio.wait_for(go(), 120))


def at(server, name):
    return AtUrl(Facts(name=name), server.url, ServerOptions(timeout_s=30, asks_memory=False))


@pytest.fixture
def driver(tmp_path):
    """A library's driver, and the file in which it notes its starts."""
    script, starts = tmp_path / "driver.py", tmp_path / "starts"
    script.write_text(DRIVER)
    starts.touch()
    command = [sys.executable, str(script), str(starts)]
    return Program(facts=Facts(name="library"), command=command, protocol="lines", timeout_s=30), starts


def summary(failed=0, complete=True, **metrics):
    return {"complete": complete, "requests": {"failed": failed}, **metrics}


def test_ratio_by_hand():
    ours = [summary(output_tokens_per_s=20.0), summary(output_tokens_per_s=40.0)]
    theirs = [summary(output_tokens_per_s=10.0), summary(output_tokens_per_s=10.0)]
    found = ratio("output_tokens_per_s", ours, theirs)
    # Logarithms of 2 and 4: mean 1.5 log 2; standard deviation log 2 / sqrt 2; Student's t 12.7062.
    half = 12.7062 * math.log(2) / math.sqrt(2) / math.sqrt(2)
    assert found["ratio"] == pytest.approx(math.sqrt(8))
    assert found["low"] == pytest.approx(math.exp(1.5 * math.log(2) - half))
    assert found["high"] == pytest.approx(math.exp(1.5 * math.log(2) + half))
    assert found["rounds"] == pytest.approx([2, 4])


def test_less_of_a_time_is_better():
    ours, theirs = [summary(ttft_s={"p50": 0.1})], [summary(ttft_s={"p50": 0.4})]
    found = ratio("ttft_s.p50", ours, theirs)
    assert found["ratio"] == pytest.approx(4)
    assert found["low"] is None


@pytest.mark.parametrize(
    "spoiled",
    [None, summary(failed=1, e2e_s={"p50": 1.0}), summary(complete=False, e2e_s={"p50": 1.0}), summary()],
)
def test_only_rounds_that_both_finished_count(spoiled):
    good = summary(e2e_s={"p50": 1.0})
    other = summary(e2e_s={"p50": 3.0})
    assert ratio("e2e_s.p50", [good, good], [spoiled, other])["rounds"] == pytest.approx([3])
    assert ratio("e2e_s.p50", [good], [spoiled]) is None


def test_turns_alternate_and_all_get_the_same(fake):
    log = []
    a = fake(lambda asked: log.append(("a", asked.body["prompt"])) or Behaviour(gap_s=0.002))
    b = fake(lambda asked: log.append(("b", asked.body["prompt"])) or Behaviour(gap_s=0.02))
    found = run([at(a, "a"), at(b, "b")], rounds=3)
    turns = [(who, prompt) for who, prompt in log if prompt != "Hello"]
    assert [who for who, _ in turns] == ["a"] * 3 + ["b"] * 3 + (["a"] * 3 + ["b"] * 3) * 3
    prompts = [sorted(p for _, p in turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert prompts[0::2] == prompts[1::2]  # a and b
    assert len({json.dumps(each) for each in prompts}) == 4  # warm-up and three rounds
    first, second = found["comparisons"][0]["sides"]
    for metric in ("tpot_s.p50", "output_tokens_per_s"):
        told = second["ratios"][metric]
        assert told["low"] <= told["ratio"] <= told["high"]
        assert told["ratio"] > 1
        values = [[metric_of(each, metric) for each in side["rounds"]] for side in (first, second)]
        by_hand = [x / y if metric.startswith("output") else y / x for x, y in zip(*values, strict=True)]
        assert told["rounds"] == pytest.approx(by_hand)
    assert found["warnings"] == []


def test_nobody_works_in_anothers_turn(fake):
    servers = {}
    busy = []

    def choose(asked):
        busy.append(sum(server.num_running > 0 for server in servers.values()))
        return Behaviour(gap_s=0.001)

    servers.update(a=fake(choose), b=fake(choose))
    run([at(server, name) for name, server in servers.items()], rounds=2)
    assert set(busy) == {1}


def test_one_that_is_not_there_is_told(fake):
    a, b = fake(), fake()
    gone = AtUrl(Facts(name="gone"), "http://127.0.0.1:9", ServerOptions(timeout_s=5))
    found = run([at(a, "a"), gone, at(b, "b")], rounds=2)
    told = {side["name"]: side for side in found["comparisons"][0]["sides"]}
    assert "does not start" in told["gone"]["failure"]
    assert told["gone"]["rounds"] == [None, None]
    assert told["gone"]["ratios"] == {}
    assert len(told["b"]["ratios"]["output_tokens_per_s"]["rounds"]) == 2
    assert any(text.startswith("gone dropped out: does not start") for text in found["warnings"])


def test_one_that_dies_drops_out(fake):
    asked = []

    def choose(_):
        asked.append(1)
        return Behaviour(status=500 if len(asked) > 7 else 200)  # the probe, warm-up, first round

    a, b = fake(), fake(choose)
    found = run([at(a, "a"), at(b, "b")], rounds=3)
    first, second = found["comparisons"][0]["sides"]
    assert second["failure"] == "round 2: http 500: told to answer 500"
    assert [each is not None for each in second["rounds"]] == [True, True, False]
    assert len(second["ratios"]["output_tokens_per_s"]["rounds"]) == 1
    assert all(first["rounds"])
    assert len(asked) == 10


def test_two_of_one_name_are_refused(fake):
    server = fake()
    with pytest.raises(InvalidConfig, match="two contestants are called a"):
        run([at(server, "a"), at(server, "a")])


def test_a_program_stays_or_starts_anew_when_memory_is_short(driver):
    program, starts = driver
    found = run([program], rounds=3)
    side = found["comparisons"][0]["sides"][0]
    assert len(starts.read_text().split()) == 1
    assert len(side["starts_s"]) == 1
    assert not side["is_restarted"]
    assert side["peak_rss_bytes"] > 1 << 20
    starts.write_text("")
    found = run([program], rounds=3, floor_bytes=1 << 60)
    side = found["comparisons"][0]["sides"][0]
    assert side["failure"] is None
    assert side["is_restarted"]
    assert len(starts.read_text().split()) == len(side["starts_s"]) == 4
    assert any("started in every round" in text for text in found["warnings"])


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_program_is_frozen_and_ended(driver):
    program, starts = driver

    async def go():
        running = await program.start()
        pid = int(starts.read_text())
        running.rest()
        while state_of(pid) != "T":
            await asyncio.sleep(0.01)
        running.wake()
        exchange = Exchange()
        await running.target.send("hello", 2, exchange)
        assert exchange.failure is None
        assert exchange.chunk_tokens == [1, 1]
        assert exchange.prompt_tokens == 4
        running.rest()
        await running.stop()
        assert running.peak_rss_bytes() > 1 << 20
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_driver_refuses_and_dies(driver):
    program, _ = driver

    async def go():
        running = await program.start()
        exchange = Exchange()
        await running.target.send("refuse", 2, exchange)
        assert (exchange.failure, exchange.detail) == (REFUSED, "not in the mood")
        for _ in range(2):  # while it dies, and after
            exchange = Exchange()
            await running.target.send("die", 2, exchange)
            assert exchange.failure == BROKEN
        await running.stop()

    asyncio.run(asyncio.wait_for(go(), 60))


def test_a_server_is_started_at_a_free_port(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    facts = Facts(name="fake", precision="none at all")
    program = Program(facts=facts, command=[sys.executable, str(script), "{port}"], timeout_s=30)
    side = run([program], rounds=2)["comparisons"][0]["sides"][0]
    assert side["failure"] is None
    assert side["precision"] == "none at all"
    assert side["told"]["server"] == "nobody 7.7"
    assert side["starts_s"][0] > 0
    assert side["means"]["requests_per_s"]["repeats"] == 2


@pytest.mark.parametrize("protocol", ["openai", "lines"])
def test_the_last_words_of_a_program_are_told(protocol):
    command = [sys.executable, "-c", "import sys; print('no such device', file=sys.stderr); sys.exit(9)"]
    program = Program(facts=Facts(name="x"), command=command, protocol=protocol, timeout_s=30)
    with pytest.raises(OctavoError, match="ended with status 9; it said: no such device"):
        asyncio.run(program.start())


def test_a_program_that_never_answers():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    program = Program(facts=Facts(name="x"), command=command, timeout_s=0.5)
    with pytest.raises(OctavoError, match=r"no answer within 0\.5 s; it said nothing"):
        asyncio.run(program.start())


def test_a_program_that_is_not_there():
    with pytest.raises(OctavoError, match="cannot start /no/such/thing"):
        asyncio.run(Program(facts=Facts(name="x"), command=["/no/such/thing"]).start())


def test_programs_are_written_and_read(driver, tmp_path):
    program, _ = driver
    file = tmp_path / "program.json"
    write_program(program, file)
    assert read_program(file) == program
    file.write_text('{"name": "x", "comand": []}')
    with pytest.raises(InvalidConfig, match="comand"):
        read_program(file)


def test_scenes_are_those_of_the_library():
    for scene in SCENES.values():
        task = as_task(scene)
        items = task.workload.items(0)
        assert len(items) == scene.num_requests == task.num_requests
        assert {len(item.prompt) for item in items} == {scene.shared_len + scene.own_len}
        assert {item.max_tokens for item in items} == {scene.output_len}
        if scene.shared_len:
            assert len({tuple(item.prompt[: scene.shared_len]) for item in items}) == 1
        assert task.plan.kind == "at-once"
    assert [scene.name for scene in parse_scenes("c, a,c")] == ["c", "a"]
    with pytest.raises(InvalidConfig, match="choose among a, b, c, d"):
        parse_scenes("a,e")


def test_command(run, fake, tmp_path):
    a, b = fake(lambda _: Behaviour(gap_s=0.001)), fake(lambda _: Behaviour(gap_s=0.01))
    html = tmp_path / "report.html"
    named = [f"a={a.url}", f"b={b.url}", "gone=http://127.0.0.1:9"]
    arguments = [part for text in named for part in ("--server", text)]
    arguments += ["--label", "b=in bfloat16", "-n", 3, "--output-len", 4, "--rounds", 2, "--no-ceilings"]
    status, out, _ = run("bench", "compare", *arguments, "--json", "--html", html)
    assert status == 0
    report = json.loads(out)
    assert report["schema_version"] == 2
    sides = report["comparisons"][0]["sides"]
    assert [side["name"] for side in sides] == ["a", "b", "gone"]
    assert sides[1]["ratios"]["output_tokens_per_s"]["ratio"] > 1
    assert sides[1]["precision"] == "in bfloat16"
    assert report["command_line"].startswith("octavo bench compare --server a=http")
    page = html.read_text()
    assert "a, beside the fastest other: " in page
    assert "times as fast as b" in page
    assert "gone dropped out" in page
    assert "in bfloat16" in page
    assert document(report).tiles[0].value != "-"
    status, out, _ = run("bench", "compare", *arguments)
    assert status == 0
    assert "is so many times as fast as" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "a=http://127.0.0.1:1"], "at least two"),
        (["--server", "http://127.0.0.1:1"], "write NAME=VALUE"),
        (["--server", "a=x", "--label", "b=y"], "no --server is called"),
        (["--server", "a=x", "--server", "b=y", "--scene", "z"], "choose among a, b, c, d"),
        (["--program", "/no/such.json"], "not a program to compare"),
        (["--model", "m", "--settings", "[]"], "must be a JSON object"),
        (["--model", "m", "--through", "window"], "choose among server, library"),
    ],
)
def test_wrong_options(run, arguments, message):
    status, _, err = run("bench", "compare", *arguments)
    assert status == 1
    assert message in err


def test_octavo_through_server_and_library(run, tmp_path):
    model = tiny.save(tiny.make("llama"), tmp_path / "model")
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())[: tiny.VOCAB_SIZE]
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(model / "tokenizer.json"))
    settings = {"block_size": 8, "max_num_seqs": 4, "prefix_cache": False}
    arguments = ["--model", model, "--through", "server,library", "--settings", json.dumps(settings)]
    arguments += ["--input-len", 20, "--output-len", 6, "-n", 5, "--vocab-size", tiny.VOCAB_SIZE]
    arguments += ["--arrivals", "at-once", "--rounds", 2, "--no-ceilings", "--json"]
    status, out, _ = run("bench", "compare", *arguments)
    assert status == 0
    sides = json.loads(out)["comparisons"][0]["sides"]
    assert [side["name"] for side in sides] == ["octavo server", "octavo library"]
    for side in sides:
        assert side["failure"] is None
        assert "block_size=8" in side["settings"]
        for each in side["rounds"]:
            assert each["requests"]["ok"] == 5
            assert (each["prompt_tokens"], each["output_tokens"]) == (100, 30)
    assert len(sides[1]["ratios"]["output_tokens_per_s"]["rounds"]) == 2
    assert sides[1]["means"]["tpot_s.p50"]["mean"] > 0


def test_ceilings_are_measured_before_every_round_and_told_as_medians(fake):
    class Measured:
        def __init__(self, value):
            self.value = value

        def as_dict(self):
            read = [{"level": "DRAM", "working_set_bytes": 1, "gb_s": self.value}]
            return {"read": read, "int8_gop_s": 10 * self.value}

    class Meter:
        values = iter([3.0, 1.0, 2.5])

        def measure(self, *, repeats):
            return Measured(next(self.values))

    async def go():
        return await compare(
            lambda _: [at(a, "a"), at(b, "b")],
            [TASK],
            CompareSettings(rounds=3),
            progress=Silent(),
            stop=asyncio.Event(),
            ceilings=Ceilings(Meter()),
        )

    a, b = fake(), fake()
    found = asyncio.run(asyncio.wait_for(go(), 60))["ceilings"]
    told = {"level": "DRAM", "working_set_bytes": 1, "gb_s": 2.5, "lowest_gb_s": 1.0, "highest_gb_s": 3.0}
    assert found == {"read": [told], "int8_gop_s": 25.0, "measurements": 3}


def test_it_ends_when_told_to(fake):
    stop = asyncio.Event()
    asked = []

    def choose(_):
        asked.append(1)
        if len(asked) == 5:  # the probe, warm-up, and the first of the first round
            loop.call_soon_threadsafe(stop.set)
        return Behaviour(gap_s=0.01)

    a, b = fake(choose), fake()

    async def go():
        nonlocal loop
        loop = asyncio.get_running_loop()
        how = CompareSettings(rounds=50)
        return await compare(
            lambda _: [at(a, "a"), at(b, "b")], [TASK, TASK], how, progress=Silent(), stop=stop
        )

    loop = None
    found = asyncio.run(asyncio.wait_for(go(), 60))
    assert found["interrupted"]
    assert len(found["comparisons"]) == 1
    first, second = found["comparisons"][0]["sides"]
    assert [each["complete"] for each in first["rounds"]] == [False]
    assert second["rounds"] == [None]
    assert first["means"] == {}
    assert found["warnings"][0].startswith("Interrupted")


def test_settings_that_differ_between_scenes_are_told_once(fake):
    server = fake()

    def contestants(task):
        slots = "16 slots" if task.name == "c" else "1 slot"
        facts = Facts(
            name="a", version="1.2", precision="Q4_0", settings=f"2 threads, {slots}", note="by pipes"
        )
        return [AtUrl(facts, server.url, ServerOptions(timeout_s=30, asks_memory=False))]

    async def go():
        tasks = [dataclasses.replace(TASK, name=name, description=name) for name in "abc"]
        how = CompareSettings(rounds=1)
        return await compare(contestants, tasks, how, progress=Silent(), stop=asyncio.Event())

    found = asyncio.run(asyncio.wait_for(go(), 60))
    told = contestant_fact(found["comparisons"], "a")
    assert told == "1.2; Q4_0; 2 threads, 1 slot (a, b), 16 slots (c); by pipes"


def test_sigterm_leaves_no_program_behind(driver, tmp_path):
    program, starts = driver
    slow = dataclasses.replace(
        program,
        facts=Facts(name="slow"),
        command=[
            sys.executable,
            "-c",
            f"import os, time; open({str(starts)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)",
        ],
    )
    files = [tmp_path / "library.json", tmp_path / "slow.json"]
    for each, file in zip([program, slow], files, strict=True):
        write_program(each, file)
    command = [sys.executable, "-m", "octavo", "bench", "compare", "--no-ceilings", "--json"]
    command += [part for file in files for part in ("--program", str(file))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    while len(pids := starts.read_text().split()) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    assert state_of(pids[0]) == "T"  # the first rests while the second starts
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    sides = json.loads(out)["comparisons"][0]["sides"]
    assert sides[1]["failure"] == "interrupted while it started"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
