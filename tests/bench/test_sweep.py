"""``octavo bench sweep``: its points, its journal, and that it goes on where it was killed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from octavo.bench.report.sweep import document, write_csv
from octavo.bench.report.terminal import print_document
from octavo.bench.sweep.grid import AXES, arguments, key_of, make_points
from octavo.bench.sweep.journal import Journal
from octavo.cli.bench.sweep import _warnings
from octavo.core.errors import InvalidConfig, OctavoError

VALUES = {
    "block_size": [16, 32],
    "context": [64, 128],
    "concurrency": [1],
    "shared_prefix": [0, 64],
    "max_step_tokens": [512],
    "kv_dtype": ["bfloat16", "int8"],
}
SETTINGS = {"model": "m", "requests_per_user": 2, "output_len": 8, "repeats": 2, "seed": 0}


def test_all_combinations():
    points = make_points(VALUES, one_at_a_time=False)
    # 16, less those four whose shared prefix is all of the prompt.
    assert len(points) == len({key_of(p) for p in points}) == 12
    assert all(p["shared_prefix"] < p["context"] for p in points)


def test_one_axis_at_a_time():
    points = make_points(VALUES, one_at_a_time=True)
    base = points[0]
    assert len(points) == 4  # the base; block size, context, KV type; no prefix as long as the prompt
    for point in points[1:]:
        assert sum(point[axis.name] != base[axis.name] for axis in AXES) == 1
    with pytest.raises(InvalidConfig, match="no point"):
        make_points({**VALUES, "shared_prefix": [200]}, one_at_a_time=False)


def test_the_command_of_a_point():
    point = {**make_points(VALUES, one_at_a_time=True)[0], "shared_prefix": 16, "concurrency": 3}
    command = arguments(point, {**SETTINGS, "threads": 2, "kv_memory": None})
    told = dict(zip(command[2:-2:2], command[3:-2:2], strict=True))
    assert command[:2] == ["bench", "serve"]
    assert (told["--input-len"], told["--shared-prefix"]) == ("48", "16")
    assert (told["--requests"], told["--concurrency"]) == ("6", "3")
    assert told["--threads"] == "2"
    assert "--kv-memory" not in told


def entry(point, **fields):
    summary = {
        name: {"mean": value, "low": None, "high": None, "repeats": 1}
        for name, value in (
            ("ttft_s.p50", point["context"] / 1000),
            ("ttft_s.p99", 0.5),
            ("tpot_s.p50", 0.01),
            ("output_tokens_per_s", 1000 / point["block_size"]),
            ("memory.waste_mean", point["block_size"] / 1000),
        )
    }
    target = {"precision": "Q4_1 weights, bfloat16 KV", "file": "m.gguf", "weight_bytes": 1 << 20}
    return {
        "point": point,
        "error": None,
        "failed_requests": 0,
        "summary": summary,
        "peak_rss_bytes": 100 << 20,
        "target": target,
        **fields,
    }


def fields(point):
    """What measuring gives."""
    return {name: value for name, value in entry(point).items() if name != "point"}


def test_a_point_that_failed_is_not_measured(tmp_path):
    points = make_points(VALUES, one_at_a_time=True)
    with Journal(tmp_path / "j") as journal:
        journal.begin({"settings": SETTINGS})
        journal.add(entry(points[0]))
        journal.add(entry(points[1], error="no memory"))
        with pytest.raises(OctavoError, match="in use"):
            Journal(tmp_path / "j")
    with Journal(tmp_path / "j") as journal:
        assert [journal.has(point) for point in points[:3]] == [True, False, False]
        journal.add(entry(points[1]))
        assert journal.has(points[1])


def report_of(points):
    return {
        "settings": SETTINGS,
        "points": points,
        "machine": {"cpu": "C", "threads": 1, "cores": 1, "isa": "i", "python": "3", "system": "L"},
        "ceilings": None,
        "command_line": "octavo bench sweep",
        "warnings": [],
        "octavo": "0",
        "measured_at": "now",
        "schema_version": 1,
    }


def test_reports_show_every_axis():
    points = make_points(VALUES, one_at_a_time=False)
    made = document(report_of([entry(point) for point in points]))
    assert "62.5 output tokens/s with blocks of 16" in made.headline
    names = {chart.name for chart in made.charts}
    kinds = ("ttft", "tpot", "throughput", "memory", "waste")  # the points here say nothing of KV
    moved = ("block_size", "context", "shared_prefix", "kv_dtype")
    assert names == {f"{axis}_{kind}" for axis in moved for kind in kinds}
    charts = {chart.name: chart for chart in made.charts}
    (ttft,) = charts["kv_dtype_ttft"].series[:1]
    assert ttft.name == "prompts of 64 tokens"
    # A line for each length of the prompt, the rest as in the first point.
    assert [s.name for s in charts["block_size_waste"].series] == [
        "prompts of 64 tokens",
        "prompts of 128 tokens",
    ]
    assert [list(s.x) for s in charts["block_size_waste"].series] == [[16, 32]] * 2
    assert list(charts["block_size_waste"].series[0].y) == pytest.approx([1.6, 3.2])
    # No prompt of 64 tokens has 64 in common, so one line is left.
    assert [s.name for s in charts["shared_prefix_ttft"].series] == ["prompts of 128 tokens"]
    assert [list(s.y) for s in charts["context_ttft"].series] == [[64, 128]] * 2
    assert list(charts["kv_dtype_throughput"].x_ticks) == ["bfloat16", "int8"]
    assert len(made.sheets[0].rows) == 12


def with_rates(*rates):
    """A point for each, by block size: least, mean, most output tokens per second."""
    points = []
    for number, (low, mean, high) in enumerate(rates, 1):
        point = entry({**make_points(VALUES, one_at_a_time=True)[0], "block_size": 8 * number})
        point["summary"]["output_tokens_per_s"] = {"mean": mean, "low": low, "high": high, "repeats": 2}
        points.append(point)
    return points


OVERLAP = ": the intervals overlap"


@pytest.mark.parametrize(
    ("rates", "doubt"),
    [
        ([(90, 100, 110), (80, 85, 89)], ""),
        (
            [(90, 100, 110), (80, 85, 90), (70, 75, 80)],
            "; 1 other point may be as good" + OVERLAP,
        ),
        (
            [(90, 100, 110), (80, 85, 95), (50, 75, 99)],
            "; 2 other points may be as good" + OVERLAP,
        ),
        ([(None, 100, None), (None, 10, None)], "; without intervals, others may be as good"),
        ([(None, 100, None)], ""),
    ],
)
def test_no_winner_where_intervals_overlap(rates, doubt):
    made = document(report_of(with_rates(*rates)))
    where = " with blocks of 8" if len(rates) > 1 else ""
    assert made.headline == f"m gives up to 100 output tokens/s{where}{doubt}"
    others = "; others may be as good" if OVERLAP in doubt else ""
    assert made.tiles[0].note == where.removeprefix(" with ") + others


def test_files_of_tables_tell_how_sure_they_are(tmp_path):
    points = with_rates((90, 100, 110), (80, 85, 89))
    points[0]["failed_requests"] = 3
    points[0]["summary"]["ttft_s.p50"] |= {"low": 0.5, "high": 0.75}
    write_csv(document(report_of(points)), tmp_path)
    with (tmp_path / "points.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["repeats"], first["failed_requests"], second["failed_requests"]) == ("2", "3", "0")
    assert (first["output_tokens_per_s_low"], first["output_tokens_per_s_high"]) == ("90.0", "110.0")
    assert [float(first[f"ttft_ms_{end}"]) for end in ("low", "high")] == [500, 750]
    assert (second["ttft_ms_low"], second["tpot_ms_high"]) == ("", "")


def test_tables_of_one_axis_tell_the_others(tmp_path, capsys):
    points = make_points({**VALUES, "shared_prefix": [0], "kv_dtype": ["int8"]}, one_at_a_time=False)
    made = document(report_of([entry(point) for point in points]))
    print_document(made)
    out = capsys.readouterr().out
    assert out.count("With prompts of 64 tokens alone.") == out.count("With blocks of 16 alone.") == 1
    write_csv(made, tmp_path)
    with (tmp_path / "by_block_size.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["block_size"], row["context"]) for row in rows] == [("16", "64"), ("32", "64")]


def sweep_command(file: Path, model: Path, *more: object) -> list[str]:
    options = ["--block-size", "16,32", "--context", "24,48", "--concurrency", "1", "--output-len", "4"]
    options += ["--requests-per-user", "1", "--repeats", "1", "--no-ceilings", "--json"]
    command = [sys.executable, "-m", "octavo", "bench", "sweep", "-m", str(model), "--journal", str(file)]
    return [*command, *options, *map(str, more)]


def test_a_killed_sweep_goes_on(tmp_path, smollm2_path):
    file = tmp_path / "sweep.jsonl"
    with subprocess.Popen(sweep_command(file, smollm2_path), stdout=subprocess.DEVNULL) as process:
        while not (file.exists() and file.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = file.read_bytes().splitlines()
    assert len(before) < 5
    # The point that it was measuring ends with it, and does not disturb what comes.
    end = time.monotonic() + 60
    while any(_is_alive(child) for child in children):
        assert time.monotonic() < end
        time.sleep(0.05)
    more = ("--csv", tmp_path / "csv", "--html", tmp_path / "s.html")
    out = subprocess.run(
        sweep_command(file, smollm2_path, *more), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    lines = file.read_bytes().splitlines()
    assert lines[: len(before)] == before  # nothing is measured again
    counts = Counter(key_of(json.loads(line)["point"]) for line in lines[1:])
    wanted = make_points(
        {**VALUES, "context": [24, 48], "shared_prefix": [0], "kv_dtype": ["bfloat16"]}, one_at_a_time=False
    )
    assert counts == {key_of(point): 1 for point in wanted}
    report = json.loads(out)
    assert [p["point"] for p in report["points"]] == wanted
    assert "One repeat only: no confidence intervals." in report["warnings"]
    for point in report["points"]:
        assert point["summary"]["output_tokens_per_s"]["mean"] > 0
        assert point["peak_rss_bytes"] > 50 << 20
        assert "memory.waste_mean" in point["summary"]
    with (tmp_path / "csv" / "points.csv").open() as points:
        rows = list(csv.DictReader(points))
    assert [(row["block_size"], row["context"]) for row in rows] == [
        (str(p["block_size"]), str(p["context"])) for p in wanted
    ]
    assert float(rows[0]["output_tokens_per_s"]) > 0
    assert (tmp_path / "csv" / "by_context.csv").exists()
    assert (tmp_path / "s.html").read_text().count("<svg") == 12


@pytest.fixture
def measured(monkeypatch):
    """Points that cost nothing; the commands that would have measured them."""
    ran = []

    def measure(command):
        ran.append(command)
        told = dict(zip(command[2:-2:2], command[3:-2:2], strict=True))
        return fields({"context": int(told["--input-len"]), "block_size": int(told["--block-size"])})

    monkeypatch.setattr("octavo.bench.sweep.runner.measure", measure)
    return ran


def test_killed_at_any_moment_it_goes_on(run, tmp_path, no_model, measured):
    file = tmp_path / "j"
    command = (
        "bench",
        "sweep",
        "-m",
        no_model,
        "--journal",
        file,
        "--context",
        "24,48",
        "--no-ceilings",
        "--json",
    )
    status, out, _ = run(*command)
    report, whole = json.loads(out), file.read_bytes()
    assert (status, len(measured)) == (0, 2)
    assert report["settings"]["octavo"] == report["octavo"]
    ends = [0] + [i + 1 for i, byte in enumerate(whole) if byte == 10]
    assert len(ends) == 4
    for size in sorted({max(0, min(len(whole), end + near)) for end in ends for near in (-9, -1, 0, 1, 12)}):
        file.write_bytes(whole[:size])
        measured.clear()
        status, out, err = run(*command)
        assert (status, err) == (0, "")
        again = json.loads(out)
        assert len(measured) == sum(end > size for end in ends[2:])  # those whose line is not there
        assert again | {"measured_at": ""} == report | {"measured_at": ""}
        assert file.read_bytes().count(b"\n") == 3


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("name", ["octavo", "cpu", "isa", "usable_cores"])
def test_points_of_another_machine_are_not_gone_on_with(run, tmp_path, no_model, name):
    file = tmp_path / "j"
    command = ("bench", "sweep", "-m", no_model, "--journal", file, "--no-ceilings", "--json")
    run(*command)
    head, points = file.read_text().split("\n", 1)
    changed = json.loads(head)
    changed["settings"][name] = "another"
    file.write_text(json.dumps(changed) + "\n" + points)
    status, _, err = run(*command)
    assert (status, f"was begun with {name}='another', not" in err) == (1, True)


@pytest.mark.usefixtures("measured")
def test_points_of_another_model_are_not_gone_on_with(run, tmp_path, no_model):
    file = tmp_path / "j"
    command = ("bench", "sweep", "-m", no_model, "--journal", file, "--no-ceilings", "--json")
    status, _, err = run(*command)
    assert (status, err) == (0, "")
    whole = file.read_bytes()
    no_model.write_bytes(b"NO model")
    status, _, err = run(*command)
    assert (status, "(the model's file has changed); choose another file with --journal" in err) == (1, True)
    assert file.read_bytes() == whole
    no_model.write_bytes(b"no model")
    assert run(*command)[0] == 0


@pytest.mark.usefixtures("measured")
def test_a_model_that_is_not_there_is_told_at_once(run, tmp_path):
    status, _, err = run("bench", "sweep", "-m", tmp_path / "none", "--journal", tmp_path / "j", "--json")
    assert (status, "there is no such file or directory" in err) == (1, True)


def test_a_point_that_fails_is_told_and_tried_again(run, tmp_path, no_model):
    file, page = tmp_path / "j", tmp_path / "s.html"
    for _ in range(2):
        status, out, err = run(
            *("bench", "sweep", "-m", no_model, "--journal", file, "--no-ceilings", "--json", "--html", page)
        )
        report = json.loads(out)
        assert status == 1
        assert len(report["points"]) == 1
        why = report["points"][0]["error"].removeprefix("octavo: ")
        assert report["warnings"][0].endswith(f" failed, and is left out: {why}")
        assert "m.gguf" in why
        assert err == f"octavo: no point could be measured; the first: {why}\n"
        assert "m.gguf: its only point failed" in page.read_text()
    assert len(file.read_text().splitlines()) == 3


def test_a_point_without_an_answer_is_no_point(run, tmp_path, no_model, monkeypatch):
    """As when its prompt is longer than the model takes; the other is reported as if it were alone."""
    command = ("bench", "sweep", "-m", no_model, "--journal", tmp_path / "j", "--context", "24,100000")
    command = (*command, "--no-ceilings", "--csv", tmp_path / "csv")
    why = "no request was answered: 6 of 6 requests failed: refused by the engine."
    ran = []

    def measure(command):
        ran.append(command[command.index("--input-len") + 1])
        if ran[-1] == "100000":
            return {"wall_s": 1.0, "error": why}
        return fields({"context": 24, "block_size": 16})

    monkeypatch.setattr("octavo.bench.sweep.runner.measure", measure)
    status, out, _ = run(*command)
    assert status == 0
    told = [line for line in out.splitlines() if "100000" in line and not line.startswith("  Command")]
    assert len(told) == out.count("context 100000, concurrency 4") == 1
    assert f"failed, and is left out: {why}" in out
    assert (tmp_path / "csv" / "points.csv").read_text().count("\n") == 2
    assert run(*command)[0] == 0
    assert ran == ["24", "100000", "100000"]


def test_warnings_of_a_sweep():
    point = make_points(VALUES, one_at_a_time=True)[0]
    some = entry(point, failed_requests=1, warnings=["1 of 6 requests failed: timed out."])
    told = "block_size 16, context 64, concurrency 1, shared_prefix 0, max_step_tokens 512, kv_dtype bfloat16"
    assert _warnings([some], 2, 1) == [
        "1 of 2 points is not measured; run it again to go on.",
        f"{told} failed in part: 1 of 6 requests failed: timed out.",
        "One repeat only: no confidence intervals.",
    ]
    assert _warnings([entry(point)], 3, 2) == ["2 of 3 points are not measured; run it again to go on."]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--block-size", "x"), ("--context", "0"), ("--kv-dtype", "int3"), ("--shared-prefix", "256")],
)
def test_axes_that_are_none(run, tmp_path, option, value):
    status, _, err = run("bench", "sweep", "--journal", tmp_path / "j", option, value)
    assert status == 1
    assert option[2:].replace("-", "_") in err
    assert not (tmp_path / "j").exists()


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
