"""A checkpoint's tensors are checked one by one; what is missing, misshapen or unknown is named."""

from dataclasses import replace

import numpy as np
import pytest
import tiny

from octavo.core.errors import CorruptModel, ModelNotFound, UnsupportedModel
from octavo.models.loading import load_model
from octavo.models.weights import take_weights
from octavo.weights.tensor import WeightTensor


def tensor(name: str, *shape: int) -> WeightTensor:
    return WeightTensor(name, "F32", shape, np.zeros((shape[0], 4 * shape[-1]), np.uint8))


@pytest.fixture
def loaded(tiny_model):
    return load_model(tiny_model("qwen2")[1])


def take(loaded, **changes):
    """Take the weights of ``loaded`` with some tensors replaced, or removed where the change is None."""
    found = {**loaded.checkpoint.tensors, **changes}
    tensors = {k: v for k, v in found.items() if v is not None}
    return take_weights(replace(loaded.checkpoint, tensors=tensors), loaded.spec)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.self_attn.v_proj.bias",
        "model.layers.2.mlp.down_proj.weight",
        "model.layers.2.input_layernorm.weight",
    ],
)
def test_missing_tensor(loaded, name):
    with pytest.raises(CorruptModel, match=f"{name} is missing"):
        take(loaded, **{name: None})


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.embed_tokens.weight", (96, 64), "97, 64"),
        ("model.layers.1.self_attn.q_proj.weight", (64, 32), "64, 64"),
        ("model.layers.1.self_attn.k_proj.bias", (64,), "32"),
        ("model.norm.weight", (64, 1), "64"),
    ],
)
def test_wrong_shape(loaded, name, shape, expected):
    with pytest.raises(CorruptModel) as caught:
        take(loaded, **{name: tensor(name, *shape)})
    message = str(caught.value)
    assert name in message
    assert str(list(shape)) in message
    assert f"[{expected}]" in message


def test_unknown_tensors(loaded):
    name = "model.layers.0.self_attn.o_proj.bias"
    with pytest.raises(UnsupportedModel, match=name):
        take(loaded, **{name: tensor(name, 64)})
    more = {f"model.layers.{i}.mlp.router.weight": tensor("router", 8, 64) for i in range(9)}
    with pytest.raises(
        UnsupportedModel, match=r"9 of the file's tensors: model.layers.0.mlp.router.weight, .*, \.\.\."
    ):
        take(loaded, **more)
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.3\.mlp\.down_proj\.weight"):
        take(loaded, **{"model.layers.3.mlp.down_proj.weight": tensor("fourth", 64, 96)})


def test_tensors_that_can_be_computed_are_passed_over(loaded):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert take(loaded, **{name: tensor(name, 8)}).embedding.shape == (97, 64)


def test_tied_embeddings(tiny_model):
    loaded = load_model(tiny_model("qwen2-tied")[1])
    assert loaded.weights.lm_head is loaded.weights.embedding
    # Some files repeat the embedding as lm_head; transformers passes it over too.
    again = take(loaded, **{"lm_head.weight": tensor("lm_head.weight", 97, 64)})
    assert again.lm_head is again.embedding


def test_weights_stay_as_the_file_has_them(tiny_model, tmp_path):
    import torch

    model = load_model(tiny.save(tiny.make("qwen3").to(torch.bfloat16), tmp_path))
    layer = model.weights.layers[0]
    assert {w.encoding for w in (*layer.qkv, *layer.gate_up, *layer.down, model.weights.embedding)} == {
        "BF16"
    }
    assert [w.shape for w in layer.qkv] == [(128, 64), (64, 64), (64, 64)]
    assert layer.q_norm is not None
    assert layer.q_norm.shape == (32,)
    assert layer.qkv_bias == layer.output_bias == layer.gate_up_bias == layer.down_bias == ()
    assert not layer.down[0].data.flags.owndata


def test_nothing_there(tmp_path):
    with pytest.raises(ModelNotFound, match="nowhere"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_broken_generation_config(tiny_model, tmp_path, text):
    path = tiny.save(tiny_model("qwen2")[0], tmp_path)
    (path / "generation_config.json").write_text(text)
    with pytest.raises(CorruptModel, match=r"generation_config\.json"):
        load_model(path)
