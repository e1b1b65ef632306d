"""Tiny models written as GGUF files and read back give transformers' logits."""

import gguf
import numpy as np
import pytest
import tiny
from gguf_files import Type, deinterleave, interleave, write
from harness import PagedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.bench.parts.random_weights import random_weight
from octavo.models.loading import load_model

TOLERANCE = 1e-4
PROMPTS = tiny.prompts(1, 9, 50)


def assert_parity(reference, path, backend) -> None:
    paged = PagedModel(load_model(path), backend, block_size=8)
    for prompt, logits in zip(PROMPTS, paged.logits(PROMPTS, chunks=(16, 1, 5)), strict=True):
        assert np.abs(logits - tiny.logits(reference, prompt)).max() < TOLERANCE


@pytest.mark.parametrize(
    "name",
    ["llama", "llama-biases-mha", "qwen2", "qwen2-tied", "qwen3", "mistral-no-window"],
)
def test_float_files(name, backend, tmp_path):
    reference = tiny.make(name)
    assert_parity(reference, write(reference, tmp_path / "model.gguf"), backend)


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1])
@pytest.mark.parametrize("name", ["llama-linear-tied", "qwen3"])
def test_encoded_files(kind, name, backend, tmp_path):
    reference = tiny.make(name)
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0} if name.startswith("llama") else {}
    path = write(reference, tmp_path / "model.gguf", matrix_type=lambda _: kind, values=scaling)
    encodings = {w.encoding for layer in load_model(path).weights.layers for w in layer.qkv + layer.down}
    assert encodings == {kind.name}
    assert_parity(reference, path, backend)


def test_mixed_types_in_one_fused_layer(backend, tmp_path):
    """As converters do: v, down and the embedding finer than the rest."""
    fine = ("attn_v", "ffn_down", "token_embd", "ffn_up")
    reference = tiny.make("llama")
    path = write(
        reference,
        tmp_path / "model.gguf",
        matrix_type=lambda name: Type.Q8_0 if any(part in name for part in fine) else Type.Q4_1,
    )
    assert [w.encoding for w in load_model(path).weights.layers[0].qkv] == ["Q4_1", "Q4_1", "Q8_0"]
    assert_parity(reference, path, backend)


@pytest.mark.parametrize("kind", [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K])
def test_k_quants(kind, backend, tmp_path):
    """The gguf library cannot make these blocks, so the weights are random ones, scaled to be sane."""
    random = np.random.default_rng(1)

    def encode(rows, kind):
        if kind == Type.F32:
            return gguf.quantize(rows, kind)
        weight = random_weight(random, kind.name, *rows.shape)
        return weight.data

    reference = tiny.make("llama-wide")
    path = write(reference, tmp_path / "model.gguf", matrix_type=lambda _: kind, encode=encode)
    weights = load_model(path).weights
    assert {w.encoding for layer in weights.layers for w in (*layer.qkv, *layer.down)} == {kind.name}
    assert weights.embedding.encoding == kind.name
    assert_parity(reference, path, backend)


def test_llama3_scaling_as_a_tensor(backend, tmp_path):
    reference = tiny.make("llama-llama3")
    plain = np.float32(10000.0) ** (-np.arange(0, 16, 2, dtype=np.float32) / 16)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](reference.config, "cpu")
    divisors = (plain / scaled.numpy()).astype(np.float32)
    assert divisors.max() == pytest.approx(8.0, rel=1e-5)
    path = write(reference, tmp_path / "model.gguf", tensors={"rope_freqs.weight": divisors})
    assert_parity(reference, path, backend)


def test_yarn(backend, tmp_path):
    reference = tiny.make("llama-yarn")
    scaling = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    assert_parity(reference, write(reference, tmp_path / "model.gguf", values=scaling), backend)


def test_window_of_a_mistral_file(backend, tmp_path):
    reference = tiny.make("mistral")
    path = write(reference, tmp_path / "model.gguf", values={"attention.sliding_window": 7})
    assert_parity(reference, path, backend)


def test_rows_are_reordered_without_loss(tmp_path):
    """q and k of a llama file come back bit for bit in the order of half rotation; others stay."""
    reference = tiny.make("llama")
    path = write(reference, tmp_path / "llama.gguf", matrix_type=lambda _: Type.Q4_0)
    model = load_model(path)
    for i, layer in enumerate(model.weights.layers):
        for weight, part, num_heads in zip(layer.qkv, "qkv", (4, 2, 1), strict=True):
            stored = model.checkpoint.tensors[f"blk.{i}.attn_{part}.weight"]
            expected = stored.data if part == "v" else deinterleave(stored.data, num_heads)
            assert np.array_equal(weight.data, expected)
            assert np.array_equal(weight.data, stored.data) == (part == "v")
    rows = np.arange(32)
    assert interleave(rows, 2).tolist()[:4] == [0, 8, 1, 9]
    assert deinterleave(interleave(rows, 2), 2).tolist() == rows.tolist()
    qwen = load_model(write(tiny.make("qwen2"), tmp_path / "qwen2.gguf"))
    stored = qwen.checkpoint.tensors["blk.0.attn_q.weight"]
    assert np.array_equal(qwen.weights.layers[0].qkv[0].data, stored.data)
