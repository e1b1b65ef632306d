"""Programs that are started for a comparison, frozen, and ended, whatever happens."""

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from comparing import TASK, compared

from octavo.bench.compare.contestant import Facts
from octavo.bench.compare.lines_target import LinesTarget
from octavo.bench.compare.program import Program, read_program, write_program
from octavo.bench.compare.watchdog import Watchdog
from octavo.bench.load.exchange import BAD_ANSWER, BROKEN, REFUSED, TIMEOUT, Exchange
from octavo.bench.load.openai_target import ServerOptions
from octavo.core.errors import InvalidConfig, OctavoError

HERE = Path(__file__).parent

SERVER = f"""
import asyncio, sys
sys.path.insert(0, {str(HERE)!r})
from fake_openai import FakeServer

async def main():
    async with FakeServer(port=int(sys.argv[1])):
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

# Starts another, and never says that it is ready.
PARENT = 'sleep 600 & echo $$ >> "$0"; echo $! >> "$0"; wait'


@pytest.fixture
def driver(tmp_path):
    """A library's driver, and the file in which it notes its starts."""
    script, starts = tmp_path / "driver.py", tmp_path / "starts"
    script.write_text(DRIVER)
    starts.touch()
    command = [sys.executable, str(script), str(starts)]
    return Program(facts=Facts(name="library"), command=command, protocol="lines", timeout_s=30), starts


def test_a_program_stays_or_starts_anew_when_memory_is_short(driver):
    program, starts = driver
    found = compared([program], rounds=3)
    side = found["comparisons"][0]["sides"][0]
    assert len(starts.read_text().split()) == 1
    assert len(side["starts_s"]) == 1
    assert not side["is_restarted"]
    assert side["peak_rss_bytes"] > 1 << 20
    starts.write_text("")
    found = compared([program], rounds=3, floor_bytes=1 << 60)
    side = found["comparisons"][0]["sides"][0]
    assert side["failure"] is None
    assert side["is_restarted"]
    assert len(starts.read_text().split()) == len(side["starts_s"]) == 4
    assert any("started in every round" in text for text in found["warnings"])


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until_it_rests(pid):
    """A program that is told to rest does so when it is its turn on a core."""
    deadline = time.monotonic() + 60
    while state_of(pid) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_is_frozen_and_ended(driver):
    program, starts = driver

    async def go():
        running = await program.start(ServerOptions())
        pid = int(starts.read_text())
        running.rest()
        wait_until_it_rests(pid)
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
        running = await program.start(ServerOptions())
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
    side = compared([program], rounds=2)["comparisons"][0]["sides"][0]
    assert side["failure"] is None
    assert side["precision"] == "none at all"
    assert side["told"]["server"] == "nobody 7.7"
    assert side["starts_s"][0] > 0
    assert side["means"]["requests_per_s"]["repeats"] == 2


def test_a_program_may_serve_several_models_and_chat(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER.replace("FakeServer()", 'FakeServer(models=("one", "two"))'))
    program = Program(
        facts=Facts(name="fake"),
        command=[sys.executable, str(script), "{port}"],
        timeout_s=30,
        model_name="two",
    )
    chats = dataclasses.replace(TASK, workload=dataclasses.replace(TASK.workload, form="chat"))
    side = compared([program], task=chats, rounds=1, asking=ServerOptions(is_chat=True))["comparisons"][0][
        "sides"
    ][0]
    assert side["failure"] is None
    assert (side["told"]["model"], side["told"]["endpoint"]) == ("two", "chat/completions")
    assert side["rounds"][0]["requests"]["ok"] == 3


def test_a_library_behind_pipes_does_not_chat(driver):
    program, starts = driver
    with pytest.raises(InvalidConfig, match="library has no chat endpoint: leave it out, or --chat"):
        compared([program], asking=ServerOptions(is_chat=True))
    with pytest.raises(InvalidConfig, match="library always ignores end tokens: leave out --ignore-eos off"):
        compared([program], asking=ServerOptions(ignore_eos=False))
    assert starts.read_text() == ""


def test_a_library_that_hangs_times_out():
    async def go():
        reader = asyncio.StreamReader()
        target = LinesTarget(Mute(), reader, timeout_s=0.05)
        reader.feed_data(b'{"ready": true}\n')
        await target.open()
        exchange = Exchange()
        await target.send("hello", 2, exchange)
        await target.close()
        return exchange

    exchange = asyncio.run(asyncio.wait_for(go(), 30))
    assert (exchange.failure, exchange.detail) == (TIMEOUT, "after 0.05 s")


@pytest.mark.parametrize("protocol", ["openai", "lines"])
def test_the_last_words_of_a_program_are_told(protocol):
    command = [sys.executable, "-c", "import sys; print('no such device', file=sys.stderr); sys.exit(9)"]
    program = Program(facts=Facts(name="x"), command=command, protocol=protocol, timeout_s=30)
    with pytest.raises(OctavoError, match="ended with status 9; it said: no such device"):
        asyncio.run(program.start(ServerOptions()))


def test_a_program_that_never_answers():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    program = Program(facts=Facts(name="x"), command=command, timeout_s=0.5)
    with pytest.raises(OctavoError, match=r"no answer within 0\.5 s; it said nothing"):
        asyncio.run(program.start(ServerOptions()))


def test_a_program_that_is_not_there():
    with pytest.raises(OctavoError, match="cannot start /no/such/thing"):
        asyncio.run(Program(facts=Facts(name="x"), command=["/no/such/thing"]).start(ServerOptions()))


def test_programs_are_written_and_read(driver, tmp_path):
    program, _ = driver
    file = tmp_path / "program.json"
    write_program(program, file)
    assert read_program(file) == program
    file.write_text('{"name": "x", "comand": []}')
    told = "not a program to compare: no key is called 'comand'; known are name, version, precision, "
    with pytest.raises(InvalidConfig, match=re.escape(told)):
        read_program(file)
    file.write_text('{"name": "x"}')
    with pytest.raises(InvalidConfig, match="not a program to compare: command is missing"):
        read_program(file)


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
    wait_until_it_rests(pids[0])  # while the second starts
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    sides = json.loads(out)["comparisons"][0]["sides"]
    assert sides[1]["failure"] is None  # it did nothing wrong
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def is_gone(pid):
    """Whether it does nothing any more; who should notice its end may be slow to do so."""
    try:
        return state_of(pid) in "ZX"
    except FileNotFoundError:
        return True


def test_kill_9_leaves_no_program_behind(driver, tmp_path):
    """Neither a frozen one, nor one that works, nor what these started."""
    program, starts = driver
    slow = dataclasses.replace(
        program, facts=Facts(name="slow"), command=["/bin/sh", "-c", PARENT, str(starts)]
    )
    files = [tmp_path / "library.json", tmp_path / "slow.json"]
    for each, file in zip([program, slow], files, strict=True):
        write_program(each, file)
    command = [sys.executable, "-m", "octavo", "bench", "compare", "--no-ceilings"]
    command += [part for file in files for part in ("--program", str(file))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(pids := starts.read_text().split()) < 3:
        assert process.poll() is None
        time.sleep(0.05)
    wait_until_it_rests(pids[0])
    assert not any(map(is_gone, pids))
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while not all(map(is_gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = [pid for pid in pids if not is_gone(pid)]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert left == []


def test_a_watchdog_that_is_dismissed_bites_nobody():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as sleeper:
        unused, used = Watchdog(), Watchdog()
        used.guard(sleeper.pid)
        for each in (unused, used):
            each.dismiss()
        assert sleeper.poll() is None
        sleeper.kill()


@pytest.mark.parametrize(
    "answer",
    [
        '{"id": 0}',
        '{"id": 0, "chunks": [[1.0, 1e999]], "prompt_tokens": 4}',
        '{"id": 0, "chunks": [[NaN, 1]], "prompt_tokens": 4}',
        '{"id": 0, "chunks": [[2.0, 1], [1.0, 1]], "prompt_tokens": 4}',
        '{"id": 0, "chunks": [[1.0, 0]], "prompt_tokens": 4}',
        '{"id": 0, "chunks": [[1.0]], "prompt_tokens": 4}',
        '{"id": 0, "chunks": 7, "prompt_tokens": 4}',
        '{"id": 0, "chunks": [], "output_tokens": 2, "prompt_tokens": -1}',
        '{"id": 0, "chunks": [], "output_tokens": 2, "prompt_tokens": "many"}',
    ],
)
def test_one_odd_answer_is_one_failed_request(answer):
    exchange = asyncio.run(asyncio.wait_for(answered(answer), 30))
    assert exchange.failure == BAD_ANSWER


@pytest.mark.parametrize("noise", ["[" * 100_000, "7", "null", '{"id": []}', '{"id": 1e999}', "\\udc80"])
def test_noise_is_no_answer(noise):
    good = '{"id": 0, "chunks": [[1.0, 1]], "prompt_tokens": 4}'
    exchange = asyncio.run(asyncio.wait_for(answered(noise, good), 30))
    assert exchange.failure is None
    assert (exchange.output_tokens, exchange.cached_tokens) == (1, None)


def test_a_line_without_end_ends_the_program_not_the_comparison():
    exchange = asyncio.run(asyncio.wait_for(answered("x" * 2000, limit=1000), 30))
    assert exchange.failure == BROKEN


async def answered(*lines, limit=1 << 20):
    """A request to a program that answers so."""
    reader = asyncio.StreamReader(limit=limit)
    target = LinesTarget(Mute(), reader, timeout_s=30)
    reader.feed_data(b'{"ready": true}\n')
    await target.open()
    exchange = Exchange()
    sending = asyncio.create_task(target.send("hello", 2, exchange))
    await asyncio.sleep(0)
    for line in lines:
        reader.feed_data(line.encode() + b"\n")
    await sending
    await target.close()
    return exchange


class Mute:
    """A pipe into which all vanishes."""

    def write(self, data): ...

    async def drain(self): ...

    def close(self): ...
