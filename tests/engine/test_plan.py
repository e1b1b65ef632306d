"""The memory plan is what an LLM then has, and says what to do where it does not fit."""

import json
import re
import subprocess
import sys

import pytest

from octavo import LLM
from octavo.backends.sizing import SizingBackend
from octavo.core.config import EngineConfig
from octavo.core.errors import CorruptModel, InvalidConfig, UnsupportedModel
from octavo.engine.build import build_engine
from octavo.engine.planning import plan_memory
from octavo.models.decoder import Decoder
from octavo.models.loading import load_hollow_model, load_model
from octavo.weights.encoding import row_bytes
from octavo.weights.tensor import BLOCK_OF

MIXED = {"0-9": 64, "10-19": 16, "20-29": 8}


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_memory_bytes": 64 << 20},
        {"kv_memory_bytes": 64 << 20, "kv_dtype": "int8", "max_context": 500},
        {"kv_memory_bytes": 100_000_000, "kv_dtype": "float32", "block_size": 32},
        {"kv_memory_bytes": 64 << 20, "block_size": MIXED},
        {"max_context": 64, "max_num_seqs": 4},  # as much as the rows can use, of what is free
        {"max_context": 64, "max_num_seqs": 4, "kv_dtype": "float16", "block_size": 8},
    ],
    ids=str,
)
def test_the_plan_is_what_the_model_then_has(smollm2_path, settings):
    config = EngineConfig(**settings)
    plan = plan_memory(smollm2_path, config)
    with LLM(
        smollm2_path,
        kv_memory=settings.get("kv_memory_bytes"),
        **{name: value for name, value in settings.items() if name != "kv_memory_bytes"},
    ) as llm:
        assert plan.dtypes[plan.chosen].capacity == llm.capacity
        assert (plan.path, plan.fixed.file_bytes) == (llm.path, llm.weight_bytes)
        assert plan.spec == llm.spec
    assert plan.problem == ""


@pytest.mark.parametrize("name", ["mistral", "qwen2-some-layers-slide", "qwen3-tied-biases", "llama-wide"])
@pytest.mark.parametrize("memory", [40_000, 200_000, None], ids=str)
def test_windows_and_small_pools(tiny_directory, name, memory):
    path = tiny_directory(name)[1]
    for dtype in ("bfloat16", "int8"):
        config = EngineConfig(
            kv_memory_bytes=memory, kv_dtype=dtype, block_size=8, max_num_seqs=3, max_step_tokens=24
        )
        plan = plan_memory(path, config)
        built = build_engine(str(path), config)
        assert plan.dtypes[dtype].capacity == built.capacity
        assert plan.fixed.file_bytes == built.weight_bytes


def test_sequences_that_fit_do_fit(smollm2_path):
    plan = plan_memory(smollm2_path, EngineConfig(kv_memory_bytes=64 << 20))
    found = plan.dtypes["bfloat16"]
    assert found.capacity.num_blocks == 181
    assert found.capacity.num_sequences(16) == 181
    assert found.capacity.num_sequences(17) == 90
    assert found.capacity.num_sequences(181 * 16) == 1
    assert found.capacity.num_sequences(181 * 16 + 1) == 0
    assert found.longest == 181 * 16


# The arithmetic


@pytest.mark.parametrize("encoding", BLOCK_OF)
def test_packed_weights_take_what_is_said(encoding):
    """Measured in a process of its own: what packing a large matrix adds to its memory."""
    code = f"""
import numpy as np
from octavo.backends.cpu import CpuBackend
from octavo.backends.sizing import packed_bytes
from octavo.weights.encoding import row_bytes
from octavo.weights.tensor import WeightTensor

def anonymous():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))

shape = (16339, {8192 if BLOCK_OF[encoding][0] > 1 else 1024})
data = np.zeros((shape[0], row_bytes("{encoding}", shape[1])), np.uint8)
data[:] = 0x3c
weight = WeightTensor("w", "{encoding}", shape, data)
backend = CpuBackend(threads=1)
backend.load_linear([WeightTensor("w", "{encoding}", (16, shape[1]), data[:16])])
before = anonymous()
kept = backend.load_linear([weight])
print(anonymous() - before, packed_bytes(weight))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    measured, said = map(int, result.stdout.split())
    assert abs(measured - said) <= 2 << 20  # a huge page; a byte more per 32 values would be 4 MiB


@pytest.mark.parametrize("name", ["qwen3-tied-biases", "mistral", "llama-biases-mha"])
@pytest.mark.parametrize("activations", ["auto", "int8", "float32"])
def test_the_hollow_model_is_recorded_as_the_true_one(tiny_directory, name, activations, monkeypatch):
    """The buffers of a step have the widths that the native tape is given."""
    path = tiny_directory(name)[1]
    widths = []
    assign = sys.modules["octavo.backends.cpu"].assign_buffers

    def spy(*arguments):
        widths.append(assign(*arguments))
        return widths[-1]

    monkeypatch.setattr("octavo.backends.cpu.assign_buffers", spy)
    build_engine(str(path), EngineConfig(kv_memory_bytes=1 << 20, activations=activations))
    loaded = load_hollow_model(path)
    backend = SizingBackend(activations)
    decoder = Decoder(loaded.spec, loaded.weights, backend)
    q_width = loaded.spec.num_heads * loaded.spec.head_dim
    one, two = (
        backend.scratch_bytes(decoder.forward, q_width=q_width, max_tokens=count, threads=1)
        for count in (1000, 2000)
    )
    spec = loaded.spec
    widest = 0 if activations == "float32" else max(spec.hidden_size, spec.intermediate_size, q_width)
    assert (two - one) // 1000 == 4 * sum(widths[0].widths) + 64 * -(-widest // 32)


def test_hollow_weights_have_the_shapes_and_encodings_of_full_ones(smollm2_path):
    full, hollow = load_model(smollm2_path).weights, load_hollow_model(smollm2_path).weights
    pairs = [(full.embedding, hollow.embedding), (full.lm_head, hollow.lm_head)]
    for a, b in zip(full.layers, hollow.layers, strict=True):
        pairs += zip(
            (*a.qkv, *a.output, *a.gate_up, *a.down), (*b.qkv, *b.output, *b.gate_up, *b.down), strict=True
        )
    for a, b in pairs:
        assert (a.name, a.encoding, a.shape) == (b.name, b.encoding, b.shape)
        assert b.num_bytes == 0
        assert a.num_bytes == a.shape[0] * row_bytes(a.encoding, a.shape[1])


def test_a_damaged_model_has_no_plan(tiny_directory, tmp_path):
    source = tiny_directory("llama")[1]
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    with pytest.raises(CorruptModel, match="the model's configuration asks for"):
        plan_memory(tmp_path, EngineConfig())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "architectures": ["Nonsense"], "model_type": "x"})
    )
    with pytest.raises(UnsupportedModel):
        plan_memory(tmp_path, EngineConfig())


def test_the_parts_add_up_to_what_a_process_takes(smollm2_path):
    """With its pool full; pages of the model's file are the system's, which takes them back."""
    code = f"""
from octavo import LLM, SamplingParams
llm = LLM("{smollm2_path}", kv_memory="64MiB")
prompts = [[i + 5] * 350 for i in range(8)]
llm.generate(prompts, SamplingParams(max_tokens=8, ignore_eos=True))
assert llm.memory().stats.free_blocks < 10
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon")))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    taken = int(result.stdout)
    plan = plan_memory(smollm2_path, EngineConfig(kv_memory_bytes=64 << 20))
    fixed = plan.fixed
    assert fixed.weight_bytes + plan.pool_bytes < taken
    assert taken < fixed.num_bytes - fixed.embedding_bytes + plan.pool_bytes


# What does not fit


def test_a_pool_that_is_too_small(smollm2_path):
    config = EngineConfig(kv_memory_bytes=100 << 20, max_context=4096)
    plan = plan_memory(smollm2_path, config, num_sequences=2)
    assert plan.demand.num_frames(plan.dtypes["bfloat16"].layers) == 2 * 256 + 1
    needed = 513 * 368640
    assert plan.dtypes["bfloat16"].needed_bytes == needed
    assert f"2 sequences of 4,096 tokens as bfloat16: {needed} bytes of KV needed" in plan.problem
    assert f"{100 << 20} had (100.0 MiB, kv_memory)" in plan.problem
    assert "kv_dtype=int8" in plan.problem
    longest = int(re.search(r"at most ([\d,]+) tokens in each", plan.problem)[1].replace(",", ""))
    # What it says would do, does; a little more does not.
    for change, fits in (
        ({"kv_memory_bytes": needed}, True),
        ({"kv_memory_bytes": needed - 1}, False),
        ({"kv_dtype": "int8"}, True),
        ({"max_context": longest}, True),
        ({"max_context": longest + 1}, False),
    ):
        settings = {"kv_memory_bytes": 100 << 20, "max_context": 4096, **change}
        found = plan_memory(smollm2_path, EngineConfig(**settings), num_sequences=2)
        assert (found.problem == "") == fits, change


def test_a_budget_for_everything(smollm2_path):
    fixed = plan_memory(smollm2_path, EngineConfig()).fixed
    plan = plan_memory(smollm2_path, EngineConfig(), memory_bytes=fixed.num_bytes + (64 << 20))
    assert plan.pool_bytes == 64 << 20
    assert plan.problem == ""
    with LLM(smollm2_path, kv_memory=plan.pool_bytes) as llm:
        assert llm.capacity == plan.dtypes["bfloat16"].capacity
    plan = plan_memory(smollm2_path, EngineConfig(), memory_bytes=100 << 20)
    assert plan.dtypes["int8"].capacity is None
    assert f"{100 << 20} had (100.0 MiB)" in plan.problem
    assert "a model file with fewer bits per weight" in plan.problem
    plan = plan_memory(smollm2_path, EngineConfig(kv_memory_bytes=1 << 30), memory_bytes=1 << 30)
    assert f"its KV pool: {fixed.num_bytes + (1 << 30)} bytes needed" in plan.problem
    assert "kv_memory of at most " in plan.problem


def test_a_context_beyond_the_model_is_refused(smollm2_path):
    with pytest.raises(InvalidConfig, match="max_context=8193: the model's limit is 8192"):
        plan_memory(smollm2_path, EngineConfig(max_context=8193))


# The command


def test_the_command(run, smollm2_path):
    status, out, err = run("plan", smollm2_path, "--kv-memory", "64MiB", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["path"] == str(smollm2_path)
    assert {dtype: entry["bytes_per_token"] for dtype, entry in found["kv_dtypes"].items()} == {
        "bfloat16": 23040,
        "float16": 23040,
        "float32": 46080,
        "int8": 12240,
    }
    assert found["kv_dtypes"]["bfloat16"]["num_tokens"] == 181 * 16
    assert found["kv_dtypes"]["bfloat16"]["num_sequences"] == {"1024": 2, "4096": 0, "8192": 0}
    assert found["fixed"]["num_bytes"] == sum(
        found["fixed"][f"{part}_bytes"] for part in ("weight", "embedding", "scratch", "runtime")
    )
    status, out, err = run("plan", smollm2_path, "--kv-memory", "64MiB")
    assert (status, err) == (0, "")
    for word in ("Weights", "23,040", "2,896", "x 1,024", "64.0 MiB"):
        assert word in out


def test_the_command_fails_where_it_does_not_fit(run, smollm2_path):
    arguments = ("plan", smollm2_path, "--kv-memory", "64MiB", "--context", 4096)
    status, out, err = run(*arguments)
    assert status == 1
    assert "KV as" in out
    assert err.startswith("octavo: does not fit: 1 sequence of 4,096 tokens as bfloat16: ")
    status, out, err = run(*arguments, "--json")
    assert (status, json.loads(out)["problem"] in err) == (1, True)
    assert run(*arguments, "--kv-dtype", "int8")[0] == 0
    assert run(*arguments, "--kv-dtype", "int8", "--sequences", 2)[0] == 1
    status, out, err = run("plan", smollm2_path, "--memory", "lots")
    assert (status, out) == (1, "")
    assert err.startswith("octavo: memory='lots': not a size in bytes")
    assert run("plan", "no-such-model")[0] == 1
