"""``octavo bench serve`` against ``octavo serve``, with the real model."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def server(smollm2_path):
    command = [sys.executable, "-m", "octavo", "serve", "-m", str(smollm2_path), "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, "--kv-memory", "64MiB"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield process.pid, json.loads(process.stdout.readline())["url"]
        process.terminate()


@pytest.mark.parametrize("chat", [False, True])
def test_octavo_tells_tokens_and_memory(run, server, chat):
    pid, url = server
    status, out, _ = run(
        "bench", "serve", url, "-n", 5, "--input-len", 20, "--output-len", 6, "--shared-prefix", 64, "-c", 3,
        "--repeats", 2, "--no-ceilings", "--json", "--server-pid", pid, *(["--chat"] if chat else []),
    )  # fmt: skip
    report = json.loads(out)
    assert status == 0
    assert report["target"]["server"].startswith("octavo ")
    assert report["target"]["precision"].endswith(" weights, bfloat16 KV")
    assert report["target"]["ignore_eos"] is True
    assert report["peak_rss_bytes"] > 50 << 20
    for repeat in report["repeats"]:
        assert repeat["requests"]["ok"] == 5
        assert repeat["output_tokens"] == 30
        assert repeat["counts"]["without_usage"] == 0
        assert repeat["counts"]["shorter_than_asked"] == 0
        assert repeat["memory"]["hit_rate"] > 0.3
        assert repeat["memory"]["total_blocks"] > 0
        if not chat:
            assert repeat["prompt_tokens"] == 5 * 84
            assert repeat["cached_tokens"] >= 2 * 64


def test_octavo_refuses_by_reason(run, server):
    _, url = server
    status, out, _ = run(
        "bench", "serve", url, "-n", 2, "--input-len", 9000, "--output-len", 6, "--repeats", 1, "--warmup", 0,
        "--no-ceilings", "--json",
    )  # fmt: skip
    report = json.loads(out)
    assert status == 1  # none was answered
    assert report["repeats"][0]["failures"]["http 400"]["count"] == 2
    assert "2 of 2 requests failed: http 400" in report["warnings"][0]
