"""``octavo bench latency`` and ``throughput``, and ``serve`` with an engine in this process."""

import json
import signal
import subprocess
import sys
import time

import pytest
from fake_openai import Behaviour

from octavo.bench.report.head import without_secrets

FEW = ("--repeats", 2, "--warmup", 1, "--no-ceilings", "--json")


def test_latency_of_a_server(run, fake, tmp_path):
    server = fake(lambda _: Behaviour(gap_s=0.01))
    status, out, _ = run(
        "bench", "latency", server.url, "--prompt-lens", "9,3,9", "-n", 2, "--output-len", 4, *FEW,
        "--html", tmp_path / "l.html",
    )  # fmt: skip
    report = json.loads(out)
    assert status == 0
    assert report["command"] == "latency"
    assert [point["prompt_len"] for point in report["points"]] == [3, 9]
    for point in report["points"]:
        assert point["summary"]["tpot_s.p50"]["repeats"] == 2
        assert [r["requests"]["ok"] for r in point["repeats"]] == [2, 2]
        assert point["repeats"][0]["prompt_tokens"] == 2 * point["prompt_len"]
    assert server.most_running == 1
    page = (tmp_path / "l.html").read_text()
    assert page.count("<svg") == 2
    assert "one stream: the first token comes" in page


def test_latency_without_an_answer(run, fake):
    server = fake(lambda asked: Behaviour(status=500 if asked.body["max_tokens"] > 1 else 200))
    few = ("-n", 1, "--output-len", 4, *FEW)
    status, out, err = run("bench", "latency", server.url, "--prompt-lens", "3,9", *few)
    assert status == 1
    assert err.startswith("octavo: no request was answered: 2 of 2 requests failed: http 500")
    assert len(json.loads(out)["points"]) == 2
    server = fake(lambda asked: Behaviour(status=500 if len(asked.body["prompt"]) == 3 else 200))
    assert run("bench", "latency", server.url, "--prompt-lens", "3,9", *few)[0] == 0


def test_latency_of_a_server_that_never_answers(run, fake):
    server = fake(lambda _: Behaviour(first_s=600.0))
    status, _, err = run(
        "bench", "latency", server.url, "--prompt-lens", "3", "--timeout", 1, "--no-ceilings"
    )
    assert status == 1
    assert err.endswith("/v1/completions does not answer a small request: timed out: after 1 s\n")


@pytest.mark.parametrize("wrong", ["", "a", "0", "5,,6"])
def test_lengths_of_latency(run, wrong):
    status, _, err = run("bench", "latency", "http://x", "--prompt-lens", wrong)
    assert status == 1
    assert "prompt_lens=" in err


def test_latency_in_process(run, smollm2_path):
    status, out, _ = run(
        "bench", "latency", "-m", smollm2_path, "--prompt-lens", "5,40", "-n", 1, "--output-len", 3, *FEW
    )
    report = json.loads(out)
    assert status == 0
    assert report["target"]["kind"] == "engine"
    assert report["peak_rss_bytes"] > 50 << 20
    assert all(point["summary"]["ttft_s.p50"]["mean"] > 0 for point in report["points"])


def test_throughput(run, smollm2_path, tmp_path):
    status, out, _ = run(
        "bench", "throughput", "-m", smollm2_path, "-n", 5, "--input-len", "uniform:5,20", "--output-len", 6,
        "--shared-prefix", 32, *FEW, "--per-request", "--html", tmp_path / "t.html",
    )  # fmt: skip
    report = json.loads(out)
    assert status == 0
    assert report["workload"]["arrivals"] == "at-once"
    assert "Q4_1" in report["target"]["precision"]
    for number, repeat in enumerate(report["repeats"]):
        assert repeat["complete"]
        assert repeat["requests"]["ok"] == 5
        assert repeat["output_tokens"] == 30
        mine = [r for r in report["requests"] if r["repeat"] == number]
        assert repeat["prompt_tokens"] == sum(r["prompt_tokens"] for r in mine)
        assert repeat["cached_tokens"] == sum(r["cached_tokens"] for r in mine) > 0
        assert repeat["itl_s"] is None
        assert repeat["memory"]["hit_rate"] > 0.3
        assert repeat["memory"]["peak_blocks"] > 0
        for one in mine:
            assert 0 < one["ttft_s"] <= one["e2e_s"] <= repeat["duration_s"] * 1.001
            assert one["output_tokens"] == 6
    assert not any("Chunks" in warning for warning in report["warnings"])
    assert report["peak_rss_bytes"] > 50 << 20
    assert "output tokens/s" in (tmp_path / "t.html").read_text()


def test_requests_that_an_engine_refuses_are_counted(run, smollm2_path):
    status, out, _ = run(
        "bench", "throughput", "-m", smollm2_path, "-n", 4, "--input-len", "uniform:20,60", "--output-len", 4,
        "--max-context", 40, *FEW,
    )  # fmt: skip
    report = json.loads(out)
    assert status == 0
    for repeat in report["repeats"]:
        failed = repeat["requests"]["failed"]
        assert repeat["requests"]["ok"] + failed == 4
        assert 0 < failed < 4
        assert repeat["failures"]["refused by the engine"]["count"] == failed
        assert repeat["output_tokens"] == 4 * repeat["requests"]["ok"]


def test_serve_in_process(run, smollm2_path):
    status, out, _ = run(
        "bench", "serve", "-m", smollm2_path, "-w", "chat", "-n", 2, "--turns", 2, "--input-len", 6,
        "--output-len", 4, "--system-len", 20, "--chat", "-c", 2, "--slo", "e2e=60", *FEW, "--per-request",
    )  # fmt: skip
    report = json.loads(out)
    assert status == 0
    assert report["target"]["kind"] == "engine"
    assert report["target"]["block_size"] == 16
    for repeat in report["repeats"]:
        assert repeat["requests"] == {"total": 4, "ok": 4, "failed": 0, "not_sent": 0}
        assert repeat["output_tokens"] == 16
        assert repeat["goodput"]["kept"] == 4
        assert repeat["memory"]["hit_rate"] > 0  # the second turn finds the first
    second = [r for r in report["requests"] if r["turn"] == 1]
    first = [r for r in report["requests"] if r["turn"] == 0]
    assert min(r["prompt_tokens"] for r in second) > max(r["prompt_tokens"] for r in first)


def test_the_same_requests_for_a_server_and_an_engine(run, fake, smollm2_path):
    server = fake()
    digests = []
    for target in ([server.url], ["-m", smollm2_path]):
        _, out, _ = run("bench", "serve", *target, "-n", 3, "--input-len", 5, "--output-len", 2, *FEW)
        digests.append(json.loads(out)["workload"]["digest"])
    assert digests[0] == digests[1]


def test_keys_stay_out_of_reports():
    assert without_secrets(["bench", "--api-key", "x", "-n", "3"]) == ["bench", "--api-key", "...", "-n", "3"]
    assert without_secrets(["--api-key=x", "y"]) == ["--api-key=...", "y"]


def interrupted(command, ready, number=signal.SIGINT):
    """Run a command, send a signal when ``ready()``; gives its exit status and its report."""
    with subprocess.Popen(
        [sys.executable, "-m", "octavo", "bench", *map(str, command), "--no-ceilings", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while not ready():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=100)
    assert "Traceback" not in err
    return process.returncode, json.loads(out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_throughput(smollm2_path, tmp_path, number):
    record = tmp_path / "record"
    status, report = interrupted(
        [
            "throughput",
            "-m",
            smollm2_path,
            "-n",
            3,
            "--input-len",
            5,
            "--output-len",
            8000,
            "--warmup",
            0,
            "--repeats",
            50,
            "--max-context",
            8192,
            "--record",
            record,
        ],
        lambda: record.exists() and record.stat().st_size > 10_000,
        number,
    )
    assert status == 130
    assert report["interrupted"] is True
    (repeat,) = report["repeats"]
    assert repeat["complete"] is False
    assert repeat["requests"] == {"total": 3, "ok": 0, "failed": 3, "not_sent": 0}
    assert repeat["failures"]["interrupted"]["count"] == 3


def test_ctrl_c_in_latency(fake):
    server = fake(lambda asked: Behaviour(first_s=60.0 if len(asked.body["prompt"]) == 9 else 0.0))
    status, report = interrupted(
        ["latency", server.url, "--prompt-lens", "3,9,27", "--warmup", 0, "--output-len", 3],
        lambda: any(len(asked.body["prompt"]) == 9 for asked in server.asked),
    )
    assert status == 130
    assert [point["prompt_len"] for point in report["points"]] == [3, 9]
    assert [r["complete"] for r in report["points"][0]["repeats"]] == [True] * 3
    assert report["points"][1]["repeats"][0]["complete"] is False


def test_ctrl_c_in_a_sweep(smollm2_path, tmp_path):
    file = tmp_path / "sweep.jsonl"
    status, report = interrupted(
        [
            "sweep",
            "-m",
            smollm2_path,
            "--journal",
            file,
            "--context",
            "16,32,48,64,80,96,112",
            "--repeats",
            1,
            "--output-len",
            4,
        ],
        lambda: file.exists() and file.read_bytes().count(b"\n") >= 2,
    )
    assert status == 130
    assert report["interrupted"] is True
    assert 1 <= len(report["points"]) < 7
    assert all(point["error"] is None for point in report["points"])
    assert "not measured; run it again" in report["warnings"][0]
