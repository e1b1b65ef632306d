"""Logits of tiny models equal transformers', through shuffled blocks, in chunks, with rows side by side."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from harness import PagedModel
from transformers import AutoModelForCausalLM

from octavo.backends.oracle import OracleBackend
from octavo.models.loading import LoadedModel, load_model
from octavo.models.spec import DecoderSpec, RopeSpec

BLOCK_SIZE = 8
TOLERANCE = 1e-4
LENGTHS = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 40, 101)
PROMPTS = tiny.prompts(*LENGTHS)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_logits_equal_transformers(name, tiny_model, backend):
    reference, path = tiny_model(name)
    paged = PagedModel(load_model(path), backend, block_size=BLOCK_SIZE)
    found = paged.logits(PROMPTS, chunks=(1, 7, 30, 8, 1, 1))
    for prompt, logits in zip(PROMPTS, found, strict=True):
        expected = tiny.logits(reference, prompt)
        assert logits.shape == (len(prompt), tiny.VOCAB_SIZE)
        assert np.abs(logits - expected).max() < TOLERANCE
        assert expected.std() > 0.5  # the logits say something


@pytest.mark.parametrize("name", ["llama-llama3", "qwen3", "mistral"])
def test_greedy_tokens_equal_transformers(name, tiny_model, backend):
    reference, path = tiny_model(name)
    generated = PagedModel(load_model(path), backend, block_size=BLOCK_SIZE).greedy(PROMPTS, 20)
    for prompt, tokens in zip(PROMPTS, generated, strict=True):
        # Given all tokens before it, each must be transformers' choice; so generation could not have parted.
        logits = tiny.logits(reference, prompt + tokens)[len(prompt) - 1 : -1]
        assert tokens == logits.argmax(axis=-1).tolist()


def test_sharded_files(tiny_model, backend, tmp_path):
    reference, _ = tiny_model("qwen3")
    path = tiny.save(reference, tmp_path, max_shard_size="60KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    found = PagedModel(load_model(path), backend).logits(PROMPTS[4:])
    for prompt, logits in zip(PROMPTS[4:], found, strict=True):
        assert np.abs(logits - tiny.logits(reference, prompt)).max() < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files(dtype, backend, tmp_path):
    path = tiny.save(tiny.make("qwen2").to(dtype), tmp_path)
    model = load_model(path)
    assert {w.encoding for w in model.weights.layers[0].qkv} == {"BF16" if dtype == torch.bfloat16 else "F16"}
    found = PagedModel(model, backend).logits(PROMPTS[4:])
    reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    for prompt, logits in zip(PROMPTS[4:], found, strict=True):
        assert np.abs(logits - tiny.logits(reference, prompt)).max() < TOLERANCE


def test_logits_only_where_wanted(tiny_model, backend):
    _, path = tiny_model("llama")
    model = load_model(path)
    every = PagedModel(model, backend).logits(PROMPTS[:5])
    last = PagedModel(model, backend).step(dict(enumerate(PROMPTS[:5])))
    assert last.shape == (5, tiny.VOCAB_SIZE)
    np.testing.assert_allclose(last, [logits[-1] for logits in every], atol=1e-5)


def test_old_style_rope_keys_mean_the_same(tiny_model, tmp_path):
    for name in ("llama-llama3", "llama-linear-tied", "llama-yarn"):
        _, path = tiny_model(name)
        config = json.loads((path / "config.json").read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
        assert load_model(tmp_path).spec == load_model(path).spec


# Parity could not see a switch that these models do not depend on.
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("llama-llama3", lambda spec: replace(spec, rope=RopeSpec(10000.0, 16))),
        ("llama-linear-tied", lambda spec: replace(spec, rope=RopeSpec(10000.0, 16))),
        ("llama-yarn", lambda spec: replace(spec, rope=RopeSpec(10000.0, 16))),
        ("llama-yarn", lambda spec: replace(spec, rope=replace(spec.rope, attention_factor=1.0))),
        ("mistral", lambda spec: replace(spec, sliding_window=())),
        ("mistral", lambda spec: replace(spec, sliding_window=(8, 8, 8))),
        ("qwen2-some-layers-slide", lambda spec: replace(spec, sliding_window=(9, 9, 9))),
        ("qwen3", lambda spec: replace(spec, norm_eps=1e-2)),
    ],
)
def test_each_switch_matters(name, wrong, tiny_model):
    reference, path = tiny_model(name)
    model = load_model(path)
    spec: DecoderSpec = wrong(model.spec)
    assert spec != model.spec
    paged = PagedModel(LoadedModel(spec, model.weights, model.checkpoint), OracleBackend())
    (found,) = paged.logits(PROMPTS[4:5])
    assert np.abs(found - tiny.logits(reference, PROMPTS[4])).max() > 50 * TOLERANCE
