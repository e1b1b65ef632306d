"""``octavo tune`` as a user runs it, with a model."""

import html
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import typer

from octavo.bench.report.page import as_html
from octavo.bench.report.tune import document, headline
from octavo.bench.tuning.config_file import as_toml
from octavo.cli import app

TINY = ("-n", 2, "--turns", "1", "--input-len", 8, "--output-len", 4, "--system-len", 19, "-c", 2)
TINY = (*TINY, "--warmup", 0, "--minutes", 0, "--no-ceilings")
TWO = ("--block-sizes", "8,128", "--step-budgets", "512", "--chunk-budgets", "all")


def served(file):
    """What ``octavo serve --config FILE`` would use."""
    root = typer.main.get_command(app)
    with root.make_context("octavo", [], resilient_parsing=True) as above:
        serve = root.commands["serve"]
        return serve.make_context("serve", ["--config", str(file)], parent=above).params


def test_two_candidates(run, smollm2_path, tmp_path):
    files = {name: tmp_path / name for name in ("j.jsonl", "octavo.toml", "t.html", "png")}
    command = (
        "tune", smollm2_path, *TINY, *TWO, "--journal", files["j.jsonl"], "-o", files["octavo.toml"],
        "--html", files["t.html"], "--png", files["png"], "--max-num-seqs", 8, "--kv-memory", "64MiB",
        "--json",
    )  # fmt: skip
    status, out, err = run(*command)
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert (report["command"], report["objective"]["name"]) == ("tune", "balanced")
    assert report["baseline"] == {"block_size": 16, "max_step_tokens": 512, "max_chunk_tokens": "all"}
    tried = {each["candidate"]["block_size"]: each for each in report["candidates"]}
    assert set(tried) == {16, 8, 128}
    # Both run in each round of the race, with the baseline at both ends.
    first = report["rounds"][0]
    assert [m["candidate"]["block_size"] for m in first["measured"]] == [16, 8, 128, 16]
    for number, entry in enumerate(report["rounds"]):
        order = [m["candidate"]["block_size"] for m in entry["measured"]]
        if entry["phase"] == "confirm":
            assert (len(order), order.index(16)) == (2, number % 2)
        else:
            assert order[0] == order[-1] == 16
        for measured in entry["measured"]:
            assert measured["target"]["block_size"] == measured["candidate"]["block_size"]
            assert (measured["target"]["max_num_seqs"], measured["score"] > 0) == (8, True)
    digests = [{m["workload"]["digest"] for m in entry["measured"]} for entry in report["rounds"]]
    assert all(len(each) == 1 for each in digests)  # the same requests for all of a round
    assert len(set.union(*digests)) == len(digests)  # and others in the next
    for each in report["candidates"]:
        assert each["metrics"]["kv_peak_mib"] > 0
        assert each["metrics"]["hit_percent"] is not None
    assert tried[128]["metrics"]["waste_percent"] > tried[8]["metrics"]["waste_percent"]
    use = report["verdict"]["recommended"]
    assert report["verdict"]["outcome"] in ("better", "as good", "none better")

    text = files["octavo.toml"].read_text()
    for told in (report["machine"]["cpu"], report["command_line"], report["measured_at"], "2 conversations"):
        assert f": {told}" in text
    params = served(files["octavo.toml"])
    assert params["model"] == str(smollm2_path)
    assert (params["block_size"], params["max_step_tokens"]) == (str(use["block_size"]), 512)
    assert (params["max_chunk_tokens"], params["max_num_seqs"], params["kv_memory"]) == (None, 8, "64MiB")

    page = files["t.html"].read_text()
    charts = {file.stem for file in files["png"].iterdir()}
    kinds = ("score", "times", "memory", "hits")
    assert charts == {f"block_size_{kind}" for kind in kinds}
    assert page.count("<svg") == 4
    assert headline(report) in page.replace("&#x27;", "'").replace("&nbsp;", " ")

    # Once more: nothing is measured, the file that is there is not replaced unless told so.
    before = files["j.jsonl"].read_bytes()
    status, _, err = run(*command)
    assert (status, "--force" in err) == (1, True)
    assert files["octavo.toml"].read_text() == text
    status, out, _ = run(*command, "--force")
    again = json.loads(out)
    assert status == 0
    assert again["verdict"] == report["verdict"]
    assert "measured before" in again["warnings"][-1]
    assert files["j.jsonl"].read_bytes() == before
    # Other settings are another race.
    status, _, err = run(*command, "--force", "--seed", 1)
    assert (status, "begun with seed=0, not 1" in err) == (1, True)


def test_killed_it_goes_on(smollm2_path, tmp_path):
    file = tmp_path / "j"
    command = [sys.executable, "-m", "octavo", "tune", str(smollm2_path), *map(str, (*TINY, *TWO))]
    command += ["--journal", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _wait_for_lines(process, file, 2)
        process.kill()
        process.wait()
    before = file.read_bytes().splitlines()
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert file.read_bytes().splitlines()[: len(before)] == before
    report = json.loads(out)
    assert report["verdict"]["outcome"] != "unsettled"
    assert any(f"measured before, as {file} says" in warning for warning in report["warnings"])


def test_interrupted_it_keeps_whole_rounds_and_recommends_nothing(smollm2_path, tmp_path):
    file, config = tmp_path / "j", tmp_path / "octavo.toml"
    command = [sys.executable, "-m", "octavo", "tune", str(smollm2_path), *map(str, (*TINY, *TWO))]
    command += ["--journal", str(file), "--json", "-o", str(config), "--minutes", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        _wait_for_lines(process, file, 2)
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    report = json.loads(out)
    assert process.returncode == 130
    assert report["interrupted"]
    assert report["verdict"]["outcome"] == "unsettled"
    assert "Not settled" in report["warnings"][0]
    assert report["warnings"][-1] == f"{config} is not written: that waits for the end of the race."
    assert len(report["rounds"]) == len(file.read_bytes().splitlines()) - 1 >= 1
    assert not config.exists()
    assert "not settled" in document(report).headline


def test_a_candidate_that_fails(run, smollm2_path, tmp_path):
    """A pool of eleven blocks of 16 tokens is less than the two of 128 that there must be."""
    sizes = ("--block-sizes", "128", "--step-budgets", "512", "--chunk-budgets", "all", "--kv-memory", "4MiB")
    status, out, _ = run("tune", smollm2_path, *TINY, *sizes, "--journal", tmp_path / "j", "--json")
    report = json.loads(out)
    assert status == 0
    assert report["verdict"]["outcome"] == "none better"
    assert report["warnings"][0].startswith("blocks of 128, steps of 512 failed: kv_memory is 4.0 MiB")
    made = document(report)
    assert made.sheets[0].rows[1][1:] == ["-", "", "1", "failed"]
    as_html(made)


def test_a_baseline_that_fails(run, tmp_path, no_model):
    file = tmp_path / "j"
    status, _, err = run("tune", no_model, *TINY, *TWO, "--journal", file)
    assert status == 1
    assert "the baseline (blocks of 16, steps of 512) cannot be measured" in err
    # The file belongs to nobody: the next one may have other settings.
    no_model.write_bytes(b"another")
    status, _, err = run("tune", no_model, *TINY, *TWO, "--journal", file)
    assert (status, "begun with" in err) == (1, False)
    assert len(file.read_bytes().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--block-sizes", "8,12"), "block_sizes='8,12': write multiples of 8 up to 128"),
        (("--block-sizes", "136"), "block_sizes"),
        (("--step-budgets", "0"), "step_budgets='0': write integers"),
        (("--chunk-budgets", "none"), 'or "all"'),
        (("--objective", "fame"), "objective='fame': choose one of throughput, latency, balanced"),
        (("--objective", "latency", "--slo", "ttft=1"), "give one of the two"),
        (("--slo", "speed=1"), "slo="),
        (("--block-sizes", "16", "--step-budgets", "512", "--chunk-budgets", "all"), "nothing to try"),
        (("-o", "/nowhere/octavo.toml"), "no directory /nowhere"),
        (("--minutes", "inf"), "minutes=inf: must be a number"),
    ],
)
def test_options_that_are_none(run, tmp_path, arguments, told):
    status, _, err = run("tune", "--journal", tmp_path / "j", *arguments)
    assert (status, told in err) == (1, True)
    assert not (tmp_path / "j").exists()


def test_the_config_file_is_read_as_it_was_meant(tmp_path):
    file = tmp_path / "octavo.toml"
    model = 'a "quoted"\\name\x7f\n🙂'
    told = [("Command", "octavo tune 'two\nlines'\x1b[31m")]
    settings = {"model": model, "threads": 2, "prefix-cache": False, "kv-dtype": "int8"}
    candidate = {"block_size": "0-9=64,10-29=16", "max_step_tokens": 256, "max_chunk_tokens": 64}
    file.write_text(as_toml(settings, candidate, told), encoding="utf-8")
    assert file.read_text().startswith("# Command: octavo tune 'two\\nlines'\\x1b[31m\n\n")
    assert tomllib.loads(file.read_text()) == {
        **settings,
        "block-size": "0-9=64,10-29=16",
        "max-step-tokens": 256,
        "max-chunk-tokens": 64,
    }
    params = served(file)
    assert (params["model"], params["threads"], params["prefix_cache"]) == (model, 2, False)
    assert (params["block_size"], params["max_chunk_tokens"]) == ("0-9=64,10-29=16", 64)


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (
            "better",
            "m: use blocks of 32, steps of 512: 1.070 times (1.030 to 1.110) as good as blocks of 16,",
        ),
        (
            "as good",
            "m: keep blocks of 16, steps of 512; the best of the rest, blocks of 32, steps of 512, is",
        ),
        ("none better", "m: keep blocks of 16, steps of 512; nothing that was tried comes near it"),
        ("failed", "could not be measured to the end"),
        ("unsettled", "m: not settled yet; keep blocks of 16, steps of 512 until it is"),
    ],
)
def test_headlines(outcome, sentence):
    base = {"block_size": 16, "max_step_tokens": 512, "max_chunk_tokens": "all"}
    other = {**base, "block_size": 32}
    verdict = {
        "outcome": outcome,
        "recommended": other if outcome == "better" else base,
        "chosen": other,
        "gain": {"ratio": 1.07, "low": 1.03, "high": 1.11, "rounds": 5},
    }
    assert sentence in headline({"settings": {"model": "/some/m"}, "baseline": base, "verdict": verdict})


@pytest.fixture
def measured(monkeypatch):
    """Runs that cost nothing and are all alike."""

    def measure(_):
        found = {"mean": 1.0, "low": None, "high": None, "repeats": 1}
        names = ("output_tokens_per_s", "ttft_s.mean", "tpot_s.mean")
        return {
            "error": None,
            "failed_requests": 0,
            "warnings": [],
            "summary": dict.fromkeys(names, found),
            "peak_rss_bytes": None,
            "target": {"file": "m", "precision": "p"},
            "workload": {"kind": "mooncake", "num_requests": 1, "file": "t.jsonl"},
        }

    monkeypatch.setattr("octavo.bench.tuning.runner.measure", measure)


TRACE = '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [7]}\n'
AGAINST_ONE = (
    "--minutes",
    0,
    "--block-sizes",
    32,
    "--step-budgets",
    512,
    "--chunk-budgets",
    "all",
    "--no-ceilings",
)


@pytest.mark.usefixtures("measured")
def test_over_other_contents_of_a_file_it_is_another_race(run, tmp_path, no_model):
    file, journal = tmp_path / "t.jsonl", tmp_path / "j"
    file.write_text(TRACE)
    command = ("tune", no_model, "-w", "mooncake", "--file", file, "--journal", journal, "--json")
    command = (*command, *AGAINST_ONE)
    status, out, _ = run(*command)
    assert (status, json.loads(out)["verdict"]["outcome"]) == (0, "as good")
    whole = journal.read_bytes()
    first, second = (i + 1 for i in [i for i, byte in enumerate(whole) if byte == 10][:2])
    for size in (
        0,
        3,
        first - 1,
        first,
        first + 9,
        second - 1,
        second,
        len(whole) - 1,
    ):  # wherever it was killed
        journal.write_bytes(whole[:size])
        status, out, err = run(*command)
        report = json.loads(out)
        assert (status, err, report["verdict"]["outcome"]) == (0, "", "as good")
        left = max(0, whole[:size].count(b"\n") - 1)
        which, were = ("first", "was") if left == 1 else (f"first {left}", "were")
        told = f"The {which} of {len(report['rounds'])} rounds {were} measured before, as {journal} says."
        assert (told in report["warnings"]) == (left > 0)
        assert journal.read_bytes().count(b"\n") == whole.count(b"\n")
    whole = journal.read_bytes()
    file.write_text(TRACE.replace('"output_length": 5', '"output_length": 6'))
    status, _, err = run(*command)
    assert (status, f"{journal} was begun with workload_digest='" in err) == (1, True)
    assert journal.read_bytes() == whole


@pytest.mark.usefixtures("measured")
def test_with_other_settings_it_is_another_race(run, tmp_path, no_model):
    command = ("tune", no_model, "--journal", tmp_path / "j", "--json", *AGAINST_ONE)
    assert run(*command)[0] == 0
    for options, told in (
        (("--block-sizes", "32,64"), "block_sizes='32', not '32,64'"),
        (("--step-budgets", "128"), "step_budgets='', not '128'"),
        (("--chunk-budgets", "64"), "chunk_budgets='', not '64'"),
        (("--max-step-tokens", 256, "--step-budgets", 256), "max_step_tokens=512, not 256"),
    ):
        status, _, err = run(*command, *options)
        assert (status, f"was begun with {told}; choose" in err) == (1, True)
    assert run(*command, "--block-sizes", "16,32")[0] == 0  # the baseline is in the race in any case
    no_model.write_bytes(b"another")
    status, _, err = run(*command)
    assert (status, "(the model's file has changed); choose" in err) == (1, True)


@pytest.mark.usefixtures("measured")
def test_a_race_that_is_over_goes_on_with_more_minutes(run, tmp_path, no_model):
    journal, config = tmp_path / "j", tmp_path / "octavo.toml"
    command = ("tune", no_model, "--journal", journal, "--json", *AGAINST_ONE)
    assert json.loads(run(*command)[1])["confirming_rounds"] == 5
    before = journal.read_bytes()
    told = f"All of it was measured before, as {journal} says"
    again = json.loads(run(*command)[1])
    assert again["warnings"] == [f"{told}; more --minutes than 0 go on with it."]

    status, out, _ = run(*command, "--minutes", 30, "-o", config)
    report = json.loads(out)
    assert (status, report["confirming_rounds"], report["settings"]["minutes"]) == (0, 30, 30)
    assert [each["budget_s"] for each in report["rounds"]] == [0] * 6 + [1800] * 25
    assert report["command_line"].endswith(f"--minutes 30 -o {config}")
    assert f"# Command: {report['command_line']}\n" in config.read_text()
    assert journal.read_bytes().startswith(before)
    assert report["warnings"] == [
        "It was over after round 6 and went on with more --minutes: who does so until a result pleases finds "
        "more often than one time in forty what is no better.",
        f"The first 6 of 31 rounds were measured before, as {journal} says.",
    ]
    # Nothing is left to measure, with more minutes or with fewer.
    for minutes in (60, 1):
        status, out, _ = run(*command, "--minutes", minutes)
        assert (status, json.loads(out)["confirming_rounds"]) == (0, 30)
        assert json.loads(out)["warnings"][1] == f"{told}; remove it to measure anew."


@pytest.mark.usefixtures("measured")
def test_the_table_says_that_its_ratios_are_not_the_verdicts(run, tmp_path, no_model):
    page = tmp_path / "t.html"
    command = ("tune", no_model, "--journal", tmp_path / "j", "--html", page, *AGAINST_ONE)
    status, out, _ = run(*command)
    told = (
        "The verdict's ratio, of blocks of 32, steps of 512, is over the 5 deciding rounds alone: "
        "1.000 times (1.000 to 1.000)."
    )
    assert (status, out.count(told)) == (0, 1)
    assert html.unescape(page.read_text()).replace("\xa0", " ").count(told) == 1


@pytest.mark.usefixtures("measured")
def test_it_says_how_to_use_what_it_wrote(run, tmp_path, no_model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run("tune", no_model, *AGAINST_ONE, "-o", "my octavo.toml")
    assert (status, err) == (0, "")
    last = out.splitlines()[-1]
    assert last == "Written: my octavo.toml. To use it: octavo serve --config 'my octavo.toml'"
    assert served("my octavo.toml")["block_size"] == "16"


def _wait_for_lines(process: subprocess.Popen, file: Path, count: int) -> None:
    while not (file.exists() and file.read_bytes().count(b"\n") >= count):
        assert process.poll() is None
        time.sleep(0.05)
