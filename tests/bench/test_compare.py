"""Comparisons: turns, contestants that fail, the command."""

import asyncio
import dataclasses
import json

import pytest
import tiny
from comparing import TASK, Silent, at, compared
from fake_openai import Behaviour
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo.bench.compare.comparison import Ceilings, compare
from octavo.bench.compare.contestant import AtUrl, Facts
from octavo.bench.compare.report import contestant_fact, document
from octavo.bench.compare.rounds import CompareSettings
from octavo.bench.compare.scenes import SCENES, as_task, parse_scenes
from octavo.bench.load.openai_target import ServerOptions
from octavo.core.errors import InvalidConfig


def test_nobody_works_in_anothers_turn(fake):
    servers = {}
    busy = []

    def choose(asked):
        busy.append(sum(server.num_running > 0 for server in servers.values()))
        return Behaviour(gap_s=0.001)

    servers.update(a=fake(choose), b=fake(choose))
    compared([at(server, name) for name, server in servers.items()], rounds=2)
    assert set(busy) == {1}


def test_one_that_is_not_there_is_told(fake):
    a, b = fake(), fake()
    gone = AtUrl(Facts(name="gone"), "http://127.0.0.1:9", ServerOptions(timeout_s=5))
    found = compared([at(a, "a"), gone, at(b, "b")], rounds=2)
    told = {side["name"]: side for side in found["comparisons"][0]["sides"]}
    assert "does not start" in told["gone"]["failure"]
    assert told["gone"]["rounds"] == [None, None]
    assert told["gone"]["ratios"] == {}
    assert told["a"]["ratios"] is told["a"]["differences"] is None
    assert [side["url"] for side in told.values()] == [a.url, "http://127.0.0.1:9", b.url]
    assert len(told["b"]["ratios"]["output_tokens_per_s"]["rounds"]) == 2
    assert any(text.startswith("gone dropped out: does not start") for text in found["warnings"])


def test_one_that_dies_drops_out(fake):
    asked = []

    def choose(_):
        asked.append(1)
        return Behaviour(status=500 if len(asked) > 7 else 200)  # the probe, warm-up, first round

    a, b = fake(), fake(choose)
    found = compared([at(a, "a"), at(b, "b")], rounds=3)
    first, second = found["comparisons"][0]["sides"]
    assert second["failure"] == "round 2: http 500: told to answer 500"
    assert [each["requests"]["ok"] for each in second["rounds"]] == [3, 0]
    assert len(second["ratios"]["output_tokens_per_s"]["rounds"]) == 1
    assert [each["requests"]["ok"] for each in first["rounds"]] == [3, 3]
    assert len(asked) == 10
    # On a busy machine it may have been read late too.
    assert [text for text in found["warnings"] if "read late" not in text][:3] == [
        "b dropped out: round 2: http 500: told to answer 500",
        "b: 3 of 6 requests failed: http 500. Who refuses work has less of it: rates and "
        "times of 1 of its 2 rounds are not compared.",
        "It ended after 2 of 3 rounds: only a was left.",
    ]


def test_two_of_one_name_are_refused(fake):
    server = fake()
    with pytest.raises(InvalidConfig, match="two contestants are called a"):
        compared([at(server, "a"), at(server, "a")])


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
    assert report["schema_version"] == 4
    sides = report["comparisons"][0]["sides"]
    assert [side["name"] for side in sides] == ["a", "b", "gone"]
    assert sides[1]["ratios"]["output_tokens_per_s"]["ratio"] > 1
    assert sides[1]["precision"] == "in bfloat16"
    assert report["command_line"].startswith("octavo bench compare --server a=http")
    page = html.read_text()
    assert "a against b: " in page
    assert "gone dropped out" in page
    assert "in bfloat16" in page
    assert document(report).tiles[0].value != "-"
    status, out, _ = run("bench", "compare", *arguments)
    assert status == 0
    assert "Above 1 x a is better" in out


def test_each_server_has_a_name_of_its_own_for_the_model_and_all_chat(run, fake):
    a, b = fake(models=("one", "two")), fake(models=("three",))
    arguments = ["--server", f"a={a.url}", "--server", f"b={b.url}", "--model-name", "a=two", "--chat"]
    arguments += ["-n", 2, "--output-len", 3, "--rounds", 1, "--no-ceilings", "--json"]
    status, out, _ = run("bench", "compare", *arguments)
    assert status == 0
    report = json.loads(out)
    for server, name in ((a, "two"), (b, "three")):
        assert {asked.path for asked in server.asked} == {"/v1/chat/completions"}
        assert {asked.body["model"] for asked in server.asked} == {name}
        assert {asked.body["messages"][0]["role"] for asked in server.asked} == {"user"}
    sides = report["comparisons"][0]["sides"]
    assert [side["told"]["model"] for side in sides] == ["two", "three"]
    assert {side["told"]["endpoint"] for side in sides} == {"chat/completions"}
    assert [side["means"]["output_tokens_per_s"]["mean"] > 0 for side in sides] == [True, True]


def test_tokens_that_nobody_counts_make_no_rates(run, fake, tmp_path):
    """Four tokens in a piece, without usage, as fast as the other: by pieces four times slower."""
    a = fake(lambda _: Behaviour(gap_s=0.001))
    b = fake(lambda _: Behaviour(gap_s=0.004, tokens_per_chunk=4, no_usage=True))
    arguments = ["--server", f"a={a.url}", "--server", f"b={b.url}", "-n", 2, "--output-len", 16]
    arguments += ["--input-len", 4, "--rounds", 2, "--no-ceilings", "--output", tmp_path / "report.json"]
    status, out, _ = run("bench", "compare", *arguments)
    assert status == 0
    report = json.loads((tmp_path / "report.json").read_text())
    known = {"requests_per_s", *(f"{name}_s.{p}" for name in ("ttft", "e2e") for p in ("p50", "p99"))}
    side = report["comparisons"][0]["sides"][1]
    assert set(side["ratios"]) - {"itl_s.p50", "itl_s.p99", "itl_s.max"} == known
    assert "output_tokens_per_s" not in side["means"]
    text, _ = report["warnings"]
    assert text.startswith("b: 4 answers came without usage, in 16 pieces where 64 tokens were asked for.")
    assert "a against b: TTFT " in out


def test_repeats_are_called_rounds(run):
    for given in (["--repeats", 2], ["--repeats=2"]):
        status, _, err = run("bench", "compare", "--server", "a=x", *given)
        assert (status, err) == (1, "octavo: --repeats: a comparison has rounds: write --rounds\n")


SERVERS = ["--server", "a=x", "--server", "b=y"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "a=http://127.0.0.1:1"], "at least two"),
        (["--server", "http://127.0.0.1:1"], "server='http://127.0.0.1:1': write NAME=URL, such as a=http"),
        (["--server", "http://127.0.0.1:1/?key=x"], "write NAME=URL"),
        (["--server", "a=x", "--label", "b=y"], "label: no --server is called 'b'"),
        (["--server", "a=x", "--model-name", "b=y"], "model_name: no --server is called 'b'"),
        (["--server", "a=x", "--model-name", "y"], "model_name='y': write NAME=VALUE"),
        ([*SERVERS, "--chat", "-w", "mooncake", "--file", "x"], "leave --chat out"),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SERVERS, "--turns", 3], "--turns has no effect with --workload synthetic; leave it out"),
        ([*SERVERS, "-w", "repetitive", "--file", "x"], "--file has no effect with --workload repetitive"),
        ([*SERVERS, "--burstiness", 3], "--burstiness has no effect with closed arrivals"),
        ([*SERVERS, "--rate", 3, "-c", 2], "--concurrency has no effect with poisson arrivals"),
        ([*SERVERS, "--scene", "a", "--input-len", 3], "--input-len has no effect with --scene"),
        ([*SERVERS, "--scene", "a", "-w", "synthetic"], "--workload has no effect with --scene"),
        ([*SERVERS, "--scene", "a", "--rate", 2], "--rate has no effect with --scene"),
        ([*SERVERS, "--settings", "{}"], "--settings has no effect with no --model"),
        ([*SERVERS, "--through", "library"], "--through has no effect with no --model"),
        (
            [*SERVERS, "--threads", 2, "--no-ceilings"],
            "--threads has no effect with --no-ceilings and no --m",
        ),
        (["--model", "m", "--api-key-file", "x"], "--api-key-file has no effect with no --server"),
        ([*SERVERS, "--scene", "a", "--chat"], "--chat has no effect with --scene"),
        (["--model", "m", "--model-name", "m=x"], "--model-name has no effect with no --server"),
        (["--model", "m", "--label", "m=x"], "--label has no effect with no --server"),
        (["--model", "m", "--threads", 2, "--settings", '{"threads": 1}'], "--settings has threads too"),
    ],
)
def test_options_without_effect(run, arguments, message):
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
    assert found["warnings"] == [
        "Interrupted: what follows is a part of it.",
        "a: round 1 was interrupted, and does not count.",
    ]


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
    assert told == f"{server.url}; model fake; 1.2; Q4_0; 2 threads, 1 slot (a, b), 16 slots (c); by pipes"


def test_halves_of_characters_reach_page_and_terminal(run, fake, tmp_path):
    """What a server says of itself may be no text that a file can hold."""
    a, b = fake(), fake(models=("half \ud800", "other"))
    html = tmp_path / "report.html"
    arguments = ["--server", f"a={a.url}", "--server", f"b={b.url}", "-n", 1, "--output-len", 2]
    status, out, _ = run("bench", "compare", *arguments, "--rounds", 1, "--no-ceilings", "--html", html)
    assert status == 1
    assert "half \\ud800" in out
    assert "choose with --model-name: half " in html.read_text()
