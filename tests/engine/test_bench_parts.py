"""The benchmark commands run and give what they document. No test here depends on a time."""

import json
from collections import Counter

import pytest

from octavo.bench.parts import kernels
from octavo.cli import main

CEILINGS = {"read", "int8_gop_s", "bfloat16_gflop_s", "float32_gflop_s", "loop_us"}
MACHINE = {"cpu", "cores", "threads", "isa", "l2_bytes", "l3_bytes", "octavo", "python", "system"}


@pytest.fixture
def run(capsys):
    def run(*arguments: object) -> tuple[int, str, str]:
        status = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

    return run


def check_head(report, command):
    assert report["command"] == command
    assert set(report["machine"]) == MACHINE
    assert set(report["ceilings"]) == CEILINGS


def test_kernels(run, tmp_path):
    file = tmp_path / "report.json"
    status, out, _ = run("bench", "kernels", "--quick", "--json", "--output", file)
    report = json.loads(out)
    assert status == 0
    assert json.loads(file.read_text()) == report
    check_head(report, "kernels")
    assert report["correct"] is True
    names = {case["kernel"] for case in report["cases"]}
    assert names == {"linear", "paged_attention", "embed", "rms_norm", "rope_and_write", "silu_mul"}
    for case in report["cases"]:
        assert case["correct"]
        assert case["error"] <= case["tolerance"]
        assert case["median_us"] > 0
        assert case["p10_us"] <= case["median_us"] <= case["p90_us"]
        assert case["bytes"] > 0
        assert case["working_set_bytes"] > 0
        assert case["level"] in ("L2", "L3", "DRAM")
        assert case["fraction"] == max(case["fraction_of_read"], case["fraction_of_peak"])
    linear = next(case for case in report["cases"] if case["name"].endswith("576 x 576 Q4_1, 4 rows"))
    assert linear["bytes"] == 576 * 576 // 32 * 20
    assert linear["operations"] == 2 * 4 * 576 * 576
    assert linear["arithmetic"] == "int8"
    decode = next(case for case in report["cases"] if case.get("phase") == "decode")
    assert decode["bytes"] == 256 * 2 * 3 * 64 * 2


def test_kernels_as_tables(run):
    status, out, _ = run("bench", "kernels", "--quick", "--only", "elementwise")
    assert status == 0
    for word in ("rms_norm, 1 token", "silu_mul", "read from", "loop without work"):
        assert word in out
    assert "paged_attention" not in out


def test_a_wrong_kernel_is_reported(run, monkeypatch):
    cases = kernels.elementwise_cases

    def wrong(*args, **kwargs):
        for case in cases(*args, **kwargs):
            object.__setattr__(case, "check", lambda: 0.5)
            yield case

    monkeypatch.setattr(kernels, "elementwise_cases", wrong)
    status, out, _ = run("bench", "kernels", "--quick", "--only", "elementwise")
    assert status == 1
    assert "WRONG" in out


def test_step(run, smollm2_path):
    status, out, _ = run(
        "bench", "step", "-m", smollm2_path, "--batch", 2, "--context", 40, "--steps", 3, "--json"
    )
    report = json.loads(out)
    assert status == 0
    check_head(report, "step")
    assert report["batch"] == 2
    assert abs(report["context_len"] - 40) <= 3
    assert report["new_tokens"] == 2
    assert report["tokens_per_s"] == pytest.approx(2000 / report["step_ms"], rel=0.01)
    assert "profile" not in report
    assert report["fraction_of_read"] > 0
    assert set(report["working_set"]) == {"bytes", "level", "read_gb_s"}


def test_all_sequences_of_a_batch_decode(run, smollm2_path):
    _, out, _ = run(
        "bench", "step", "-m", smollm2_path, "--batch", 9, "--context", 200, "--steps", 2, "--json"
    )
    report = json.loads(out)
    assert (report["batch"], report["new_tokens"]) == (9, 9)


def test_step_profile(run, smollm2_path):
    status, out, _ = run(
        "bench", "step", "-m", smollm2_path, "--context", 40, "--steps", 3, "--profile", "--json"
    )
    report = json.loads(out)
    profile = report["profile"]
    assert status == 0
    # Norms and activations may run as one with the layer that reads them; the parts are these.
    assert Counter(part for op in profile["ops"] for part in op["label"].split(" + ") * op["count"]) == {
        "embed": 1,
        "select": 1,
        "lm_head": 1,
        "rms_norm": 61,
        **dict.fromkeys(("qkv", "rope_and_write", "paged_attention", "output"), 30),
        **dict.fromkeys(("gate_up", "silu_mul", "down"), 30),
    }
    ops = {op["label"].split(" + ")[-1]: op for op in profile["ops"]}
    # The model's matrices: 30 layers and the head, in the encodings of the file.
    assert ops["gate_up"]["operations"] == 30 * 2 * 576 * 3072
    assert ops["lm_head"]["operations"] == 2 * 576 * 49152
    assert 0 <= ops["gate_up"]["streamed_bytes"] - 30 * 576 * 3072 // 32 * 20 <= 30 * 576 * 4
    assert report["streamed_bytes"] == sum(op["streamed_bytes"] for op in ops.values())
    assert report["operations"] == sum(op["operations"] for op in ops.values())
    assert profile["ops_us"] <= profile["step_us"]
    assert 0 < profile["python_us"] < profile["step_us"]
    assert profile["python_fraction"] > 0
    assert any("runner.run" in f["name"] for f in profile["functions"])
    assert sum(f["share"] for f in profile["functions"]) <= 1.001


def test_step_of_prefill(run, smollm2_path):
    status, out, _ = run(
        "bench",
        "step",
        "-m",
        smollm2_path,
        "--prefill",
        16,
        "--context",
        30,
        "--steps",
        2,
        "--profile",
        "--json",
    )
    report = json.loads(out)
    assert status == 0
    assert (report["new_tokens"], report["context_len"], report["batch"]) == (16, 32, 1)
    attention = next(op for op in report["profile"]["ops"] if op["label"] == "paged_attention")
    assert attention["streamed_bytes"] == 30 * 48 * 2 * 3 * 64 * 2
    assert attention["operations"] == 30 * 4 * 9 * 64 * sum(range(33, 49))


def test_step_as_tables(run, smollm2_path):
    status, out, _ = run("bench", "step", "-m", smollm2_path, "--context", 20, "--steps", 2, "--profile")
    assert status == 0
    for word in ("tokens/s", "gate_up", "lost us", "Python by function"):
        assert word in out


def test_step_refuses_what_does_not_fit(run, smollm2_path):
    status, _, err = run("bench", "step", "-m", smollm2_path, "--context", 10_000)
    assert status == 1
    assert "context has 8192" in err


def test_scenes(run, smollm2_path):
    status, out, _ = run("bench", "scenes", "-m", smollm2_path, "--quick", "--json")
    report = json.loads(out)
    assert status == 0
    check_head(report, "scenes")
    assert report["peak_rss_bytes"] > 50 << 20
    assert report["start_s"] > 0
    assert [scene["scene"] for scene in report["scenes"]] == ["a", "b", "c", "d"]
    for scene in report["scenes"]:
        assert len(scene["runs"]) == 3
        assert scene["tokens_per_s"] == sorted(scene["runs"])[1] > 0
        assert scene["first_token_ms"] > 0


def test_one_scene(run, smollm2_path):
    status, out, _ = run("bench", "scenes", "-m", smollm2_path, "--quick", "--only", "c")
    assert status == 0
    assert "c  quick" in out
    assert "a  quick" not in out


@pytest.mark.parametrize(("command", "wrong"), [("kernels", "sofmax"), ("scenes", "z")])
def test_unknown_names_are_refused(run, command, wrong):
    status, _, err = run("bench", command, "--quick", "--only", wrong)
    assert status == 1
    assert wrong in err
    assert "choose among" in err
