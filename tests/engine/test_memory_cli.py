"""What the commands say of memory: layouts by layer, and why a prompt was cached or not."""

import json

import pytest

MIXED = "0-9=64,10-19=16,20-29=8"
TEXT = "The lighthouse keeper counted ships at dusk, and each of them had a lamp of its own colour. " * 4


def test_models_info_describes_the_layout(run, smollm2_path):
    status, out, _ = run("models", "info", smollm2_path, "--block-size", MIXED, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["kv_padding"] == pytest.approx(0.04)
    assert found["kv_bytes_per_token"] == {
        "bfloat16": 24000,
        "float16": 24000,
        "float32": 48000,
        "int8": 13500,
    }
    assert [(g["layers"], g["block_size"], g["num_tables"]) for g in found["kv_groups"]] == [
        ("0-9", 64, 9),
        ("10-19", 16, 2),
        ("20-29", 8, 1),
    ]
    status, out, _ = run("models", "info", smollm2_path, "--block-size", MIXED)
    words = " ".join(out.split())
    assert "64 tokens in layers 0-9, 9 tables; 16 tokens in layers 10-19, 2 tables; 8 tokens" in words
    assert "60.0 KiB each, 4.0% padding" in words
    assert run("models", "info", smollm2_path, "--block-size", "0-9=64")[2] == (
        "octavo: block_size: layers 10-29 have none; name each layer once\n"
    )


def test_generate_explains(run, smollm2_path):
    common = ("--model", smollm2_path, "--kv-memory", "64MiB", "--max-tokens", 3, "--block-size", MIXED)
    prompts = [TEXT, TEXT + "Then"]
    status, out, _ = run("generate", *prompts, *common, "--max-num-seqs", 1, "--explain", "--json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert status == 0
    assert first["prefix"] == {
        "num_tokens": len(first["prompt_token_ids"]),
        "num_cached": 0,
        "reason": "never computed",
        "position": 0,
    }
    assert second["prefix"]["num_cached"] == second["num_cached_tokens"] >= 64
    status, out, _ = run("generate", *prompts, *common, "--max-num-seqs", 1, "--explain")
    assert status == 0
    assert "tokens cached: no complete block was cached that goes on from token 0" in out
    assert "KV blocks of 64/16/8 tokens" in out
    assert "tokens from the prefix cache (" in out
    status, out, _ = run("generate", *prompts, *common, "--no-prefix-cache", "--explain", "--json")
    assert [json.loads(line)["prefix"]["reason"] for line in out.splitlines()] == ["disabled", "disabled"]
    status, out, _ = run("generate", "a", *common, "--json")
    assert "prefix" not in json.loads(out)
