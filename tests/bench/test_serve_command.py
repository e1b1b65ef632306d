"""``octavo bench serve`` as a user runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_openai import Behaviour

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.report.numbers import figures
from octavo.bench.report.serve import document
from octavo.bench.workloads.item import WorkItem

MACHINE = {"cpu", "cores", "threads", "isa", "l2_bytes", "l3_bytes", "octavo", "python", "system"}
FEW = ("-n", 6, "--output-len", "4", "--repeats", 2, "--warmup", 2, "--no-ceilings")


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects what is of interest."""

    EMPTY = ("meta", "br", "path", "use", "rect", "link")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.fetched, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        self.fetched += [v for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith("#")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def test_a_server(run, fake, tmp_path):
    server = fake(lambda _: Behaviour(gap_s=0.01))
    status, out, err = run(
        "bench", "serve", server.url, *FEW, "--rate", 200, "--slo", "ttft=10,e2e=5", "--per-request",
        "--seed", 5, "--json", "-o", tmp_path / "r.json", "--html", tmp_path / "r.html",
        "--png", tmp_path / "p", "--api-key", "sesame", "--label", "not real",
    )  # fmt: skip
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert json.loads((tmp_path / "r.json").read_text()) == report
    assert (report["schema_version"], report["command"]) == (4, "serve")
    assert report["command_line"].startswith("octavo bench serve http://127.0.0.1:")
    assert "sesame" not in out
    assert set(report["machine"]) == MACHINE
    assert report["ceilings"] is None
    assert report["target"]["model"] == "fake"
    assert report["target"]["server"] == "nobody 7.7"
    assert report["target"]["label"] == "not real"
    assert report["workload"]["arrivals"] == "poisson"
    assert report["settings"] == {"repeats": 2, "warm_up": 2, "slo": {"ttft_s": 10, "e2e_s": 5}}
    assert len(report["workload"]["digest"]) == 64
    assert len(report["repeats"]) == 2
    for repeat in report["repeats"]:
        assert repeat["requests"] == {"total": 6, "ok": 6, "failed": 0, "not_sent": 0}
        assert repeat["output_tokens"] == 24
        assert repeat["goodput"]["fraction"] == 1.0
    assert report["summary"]["output_tokens_per_s"]["repeats"] == 2
    assert len(report["requests"]) == 12
    assert {r["repeat"] for r in report["requests"]} == {0, 1}
    # Warm-up, one probe, and the repeats.
    assert len(server.asked) == 1 + 2 + 12
    page = (tmp_path / "r.html").read_text()
    parsed = Page(page)
    assert parsed.fetched == []  # nothing from elsewhere
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert parsed.tags.count("svg") == 3
    assert "sesame" not in page
    for told in ("not real", "output tokens/s", "bench serve http", report["machine"]["cpu"]):
        assert told in page
    assert sorted(f.name for f in (tmp_path / "p").iterdir()) == ["timeline.png", "tpot.png", "ttft.png"]
    assert (tmp_path / "p" / "ttft.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_asks_the_same(run, fake):
    bodies = []
    for seed in (1, 1, 2):
        server = fake()
        run("bench", "serve", server.url, *FEW, "--input-len", "uniform:3,30", "-c", 1, "--seed", seed)
        bodies.append([a.body for a in server.asked])
    assert bodies[0] == bodies[1]
    assert bodies[0] != bodies[2]


def test_as_text(run, fake):
    server = fake(lambda asked: Behaviour(status=429) if len(asked.body["prompt"]) == 128 else Behaviour())
    status, out, err = run("bench", "serve", server.url, *FEW)
    assert status == 1
    assert err.startswith("octavo: no request was answered: 12 of 12 requests failed: http 429")
    assert "no request was answered" in out
    assert "12 of 12 requests failed: http 429 (told to answer 429)." in out
    status, out, _ = run("bench", "serve", server.url, *FEW, "--input-len", 8, "--repeats", 1)
    assert "output tokens/s" in out
    assert "TTFT, time to first token" in out
    assert "One repeat only" in out


def test_without_matplotlib_there_are_tables(run, fake, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    server = fake()
    status, _, _ = run("bench", "serve", server.url, *FEW, "--html", tmp_path / "r.html")
    assert status == 0
    parsed = Page(page := (tmp_path / "r.html").read_text())
    assert "pip install matplotlib" in page
    assert parsed.tags.count("svg") == 0
    assert parsed.tags.count("table") == 2
    status, _, err = run("bench", "serve", server.url, *FEW, "--png", tmp_path)
    assert status == 1
    assert "pip install matplotlib" in err


def test_traces(run, fake, tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [7]}\n' * 3)
    server = fake()
    few = ("--repeats", 1, "--warmup", 0, "--no-ceilings", "--json")
    status, out, _ = run("bench", "serve", server.url, "-w", "mooncake", "--file", trace, "--limit", 2, *few)
    report = json.loads(out)
    assert status == 0
    assert report["workload"]["arrivals"] == "trace"
    assert report["repeats"][0]["requests"]["ok"] == 2
    assert report["repeats"][0]["prompt_tokens"] == 18
    trace.write_text(trace.read_text() + "oops")
    status, _, err = run("bench", "serve", server.url, "-w", "mooncake", "--file", trace, *few)
    assert status == 1
    assert f"{trace}:4: is not JSON" in err


def test_prompts_of_a_file_are_sent_in_repeats_alone(run, fake, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": [1, 2, 3000]}\n{"prompt": [4, 5, 6000]}\n')
    server = fake()
    for repeats, has_warning in (("2", True), ("1", False)):
        server.asked.clear()
        asks = [
            "-w",
            "prompts",
            "--file",
            file,
            "--repeats",
            repeats,
            "--warmup",
            "2",
            "--no-ceilings",
            "--json",
        ]
        status, out, _ = run("bench", "serve", server.url, *map(str, asks))
        assert status == 0
        asked = [each.body["prompt"] for each in server.asked if each.body["prompt"] != "Hello"]
        assert sorted(asked[2:]) == sorted([[1, 2, 3000], [4, 5, 6000]] * int(repeats))
        assert all(len(prompt) == 3 and prompt not in asked[2:] for prompt in asked[:2])
        assert any("sent the same prompts" in text for text in json.loads(out)["warnings"]) == has_warning


@pytest.mark.parametrize(
    "asked",
    [
        (
            '{"messages": [{"role": "user", "content": "Hi"}]}',
            [],
            "messages, which only the chat endpoint takes",
        ),
        ('{"prompt": [1, 2]}', ["--chat"], "token ids, which the chat endpoint does not take"),
    ],
)
def test_nothing_is_sent_of_prompts_that_do_not_suit_the_endpoint(run, fake, tmp_path, asked):
    line, more, told = asked
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "A text suits both."}\n' + line)
    server = fake()
    status, _, err = run("bench", "serve", server.url, "-w", "prompts", "--file", str(file), *more)
    assert (status, server.asked) == (1, [])
    assert f"{file}:2: {told}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name either the URL"),
        (["http://x", "-m", "smollm2"], "name either the URL"),
        (["http://x", "-w", "novel"], "workload='novel'"),
        (["http://x", "-w", "mooncake"], "--file"),
        (["http://x", "--arrivals", "poisson"], "need requests per second"),
        (["http://x", "--arrivals", "trace"], "does not say when"),
        (["http://x", "--slo", "fast"], "slo="),
        (["http://x", "--body", "[1]"], "must be a JSON object"),
        (["http://x", "--body", '{"n": 2}'], "body: n=2: one choice for each request is measured"),
        (["http://x", "--ignore-eos", "maybe"], "ignore_eos="),
        (["ftp://x"], "url="),
        (["http://127.0.0.1:1"], "cannot reach"),
        (["http://x", "--html", "/nowhere/r.html"], "no directory"),
        (["http://x", "--timeout", "0"], "timeout=0: must be a number of seconds above 0"),
        (["http://x", "--timeout", "nan"], "timeout=nan"),
        (["http://x", "--server-pid", "-5"], "server_pid=-5: no process of this machine has that id"),
        (["http://x", "--server-pid", str(1 << 30)], "server_pid=1073741824"),
    ],
)
def test_what_cannot_be_measured_is_an_error(run, arguments, message):
    status, _, err = run("bench", "serve", *arguments)
    assert status == 1
    assert message in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_report_of_what_there_is(fake, tmp_path, number):
    """Interrupted in the second repeat, it writes all it was asked to write."""
    server = fake(lambda asked: Behaviour(first_s=60.0 if len(server.asked) > 1 + 6 + 2 else 0.0))
    file = tmp_path / "r.json"
    options = [
        "-n",
        "6",
        "-c",
        "1",
        "--warmup",
        "0",
        "--repeats",
        "3",
        "--no-ceilings",
        "--json",
        "-o",
        str(file),
    ]
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "octavo",
            "bench",
            "serve",
            server.url,
            *options,
            "--html",
            tmp_path / "r.html",
        ],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while len(server.asked) < 1 + 6 + 3:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    report = json.loads(out)
    assert json.loads(file.read_text()) == report
    assert report["interrupted"] is True
    assert [r["complete"] for r in report["repeats"]] == [True, False]
    assert report["repeats"][1]["requests"] == {"total": 6, "ok": 2, "failed": 1, "not_sent": 3}
    assert report["repeats"][1]["failures"] == {"interrupted": {"count": 1, "example": ""}}
    assert report["summary"]["output_tokens_per_s"]["repeats"] == 1
    assert "Interrupted: 1 complete repeat." in report["warnings"]
    Page((tmp_path / "r.html").read_text())


def test_interrupted_before_anything_is_measured(fake, tmp_path):
    """In the warm-up, whose requests are not answered: what is not there has no heading."""
    server = fake(lambda asked: Behaviour(first_s=60.0 if asked.body["max_tokens"] > 1 else 0.0))
    command = [sys.executable, "-m", "octavo", "bench", "serve", server.url, "--no-ceilings"]
    with subprocess.Popen(
        [*command, "-n", "3", "-o", tmp_path / "r.json", "--html", tmp_path / "r.html"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while len(server.asked) < 1 + 1:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["repeats"], report["workload"]["digest"]) == ([], None)
    assert report["warnings"] == ["Interrupted before the first repeat: nothing was measured."]
    lines = [line.split(maxsplit=1) for line in out.splitlines() if line]
    assert lines[0] == ["fake:", "nothing was measured"]
    assert [first for first, _ in lines[1:]] == [
        "Model",
        "Machine",
        "Workload",
        "Runs",
        "Command",
        "!",
        "Octavo",
    ]
    assert "at most" not in out
    assert Page((tmp_path / "r.html").read_text()).tags.count("table") == 0


def test_models_with_names_that_no_file_can_hold(run, fake, tmp_path):
    server = fake(models=("half \ud800",))
    status, out, _ = run("bench", "serve", server.url, *FEW, "--json", "--html", tmp_path / "r.html")
    assert status == 0
    assert json.loads(out)["target"]["model"] == "half \ud800"
    assert "half \\ud800 gives" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_headline_says_what_came(run, fake):
    server = fake()
    few = ("--repeats", 1, "--warmup", 0, "--no-ceilings")
    _, out, _ = run("bench", "serve", server.url, "-n", 2, "-c", 64, *few)
    assert re.search(r"\(64 users, at most [12] at once\)", out)
    plan = ArrivalPlan(kind="poisson", rate=50, seed=3)
    times = plan.times([WorkItem(index=i, prompt="x", max_tokens=1) for i in range(8)])
    came = figures(7 / times[-1])
    assert came not in ("50", "50.0")
    _, out, _ = run("bench", "serve", server.url, "-n", 8, "--rate", 50, "--seed", 3, *few)
    assert f"({came} requests/s, drawn for 50, Poisson)" in out
    _, out, _ = run("bench", "serve", server.url, "-n", 8, "--rate", 50, "--arrivals", "bursty",
                    "--burstiness", 0, *few)  # fmt: skip
    assert "(50 requests/s, 0 times as bursty as Poisson)" in out


def test_a_server_that_dies_is_no_average(run, fake):
    """Of two repeats of 6 requests it answers the first, after the probe and 2 of warm-up."""
    server = fake(lambda _: Behaviour(status=200 if len(server.asked) <= 9 else 500, gap_s=0.01))
    status, out, _ = run("bench", "serve", server.url, *FEW, "-c", 1, "--json")
    assert status == 0
    report = json.loads(out)
    (first, second), summary = report["repeats"], report["summary"]
    assert (first["requests"]["ok"], second["requests"]["ok"]) == (6, 0)
    assert summary["output_tokens_per_s"]["mean"] == first["output_tokens_per_s"]
    assert report["warnings"][0].startswith("Repeat 2 of 2 had no answer: it is in no mean")
    made = document(report)
    assert made.headline.endswith("; 6 of 12 requests failed")
    latencies, repeats = made.sheets
    assert [row[0][:4] for row in latencies.rows] == ["TTFT", "TPOT", "ITL,", "E2E,"]
    assert [row[0] for row in repeats.rows] == ["1", "2 (no answer)"]


def test_what_was_read_late_is_no_headline(run, fake):
    server = fake(lambda _: Behaviour(gap_s=0.005))
    _, out, _ = run("bench", "serve", server.url, *FEW, "--json")
    report = json.loads(out)
    for late, has in ((12, False), (0, True)):
        report["repeats"][0]["counts"] |= {"tpot_read_late": late}
        report["repeats"][1]["counts"] |= {"tpot_read_late": 0}
        made = document(report)
        assert ("then one each" in made.headline) == has
        assert ("Time per output token" in [tile.label for tile in made.tiles]) == has


def test_options_of_a_file(run, fake, tmp_path):
    file = tmp_path / "bench.toml"
    file.write_text(
        "max_step_tokens = 256\n[bench]\nno_ceilings = true\n[bench.serve]\nrequests = 3\ninput_len = 7\n"
        'output_len = "uniform:2,3"\nrepeats = 1\nconcurrency = 2\n[bench.sweep]\ncontext = "64,128"\n'
        "block_size = 32\nshared_prefix = 0\n"
    )
    server = fake()
    status, out, err = run("bench", "serve", server.url, "--config", file, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert report["ceilings"] is None
    assert report["repeats"][0]["prompt_tokens"] == 21
    assert report["workload"]["concurrency"] == 2


def test_a_key_of_a_file(run, fake, tmp_path):
    (tmp_path / "key").write_text("sesame\n")
    server = fake()
    status, out, _ = run("bench", "serve", server.url, *FEW, "--api-key-file", tmp_path / "key", "--json")
    assert status == 0
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer sesame"}
    assert "sesame" not in out
    (tmp_path / "key").write_text("\n")
    status, _, err = run("bench", "serve", server.url, "--api-key-file", tmp_path / "key")
    assert status == 1
    assert "has no key" in err


def test_every_field_is_documented(run, fake):
    text = (Path(__file__).parents[2] / "docs" / "benchmarking.md").read_text(encoding="utf-8")
    schema = text.partition("## The JSON object")[2].partition("\n## ")[0]
    memory = {"used_blocks": 1, "total_blocks": 9, "block_bytes": 8, "waste": 0.5}
    memory |= {"query_tokens": 1, "hit_tokens": 1}
    told = {"pool": memory, "scheduler": {"peak_blocks": 1, "num_preemptions": 0}}
    late = Behaviour(first_s=9.0)
    server = fake(
        lambda a: {2: Behaviour(status=429), 3: late}.get(a.body["max_tokens"], Behaviour()),
        memory=lambda: told,
    )
    options = ("--output-len", "uniform:1,3", "--slo", "ttft=9", "--per-request", "--json", "-n", 9)
    options += ("--timeout", 0.5, "-c", 9, "--repeats", 1)
    _, out, _ = run("bench", "serve", server.url, *options)
    report = json.loads(out)
    named = {name for part in re.findall(r"`([^`]+)`", schema) for name in part.split(".")}
    for skipped in (report["workload"], report["machine"], report["summary"]):
        skipped.clear()  # described as a whole
    for repeat in report["repeats"]:
        assert set(repeat["failures"]) == {"http 429", "timed out"}
        assert repeat["at_least"]
        repeat["failures"] = repeat["failures"]["http 429"]
    report["settings"]["slo"] = None
    assert fields_of(report) - named == set()


def fields_of(value):
    if isinstance(value, dict):
        return set(value).union(*map(fields_of, value.values()))
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    return set()
