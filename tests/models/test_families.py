"""What config.json and GGUF key/values turn into, and what is refused by name."""

from typing import Any

import numpy as np
import pytest

from octavo.core.errors import CorruptModel, UnsupportedModel
from octavo.models.gguf_config import spec_from_gguf
from octavo.models.hf_config import spec_from_config
from octavo.models.spec import RopeSpec
from octavo.weights.tensor import WeightTensor

# The essentials of published configurations.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3 = {
    **QWEN2,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "sliding_window": None,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in keys}


def test_llama():
    spec = spec_from_config(LLAMA)
    assert (spec.family, spec.num_layers, spec.num_heads, spec.num_kv_heads) == ("llama", 16, 32, 8)
    assert (spec.hidden_size, spec.intermediate_size, spec.head_dim) == (2048, 8192, 64)
    assert (spec.vocab_size, spec.context_len, spec.norm_eps) == (128256, 131072, 1e-5)
    assert spec.rope == RopeSpec(500000.0, 64, "llama3", factor=32.0, original_context=8192)
    assert spec.tied_embeddings
    assert not any([spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.qk_norm])
    assert spec.sliding_window == ()
    assert (spec.bos_token_id, spec.eos_token_ids) == (128000, (128001, 128008, 128009))


def test_qwen2():
    spec = spec_from_config(QWEN2, {"eos_token_id": [151645, 151643]})
    assert (spec.head_dim, spec.qkv_bias, spec.output_bias, spec.qk_norm) == (64, True, False, False)
    assert spec.sliding_window == ()
    assert spec.eos_token_ids == (151645, 151643)
    assert spec.rope == RopeSpec(1000000.0, 64)


def test_qwen3():
    spec = spec_from_config(QWEN3)
    assert (spec.head_dim, spec.qkv_bias, spec.qk_norm) == (128, False, True)
    assert spec.head_dim * spec.num_heads != spec.hidden_size
    biased = spec_from_config({**QWEN3, "attention_bias": True})
    assert biased.qkv_bias
    assert biased.output_bias


def test_mistral():
    spec = spec_from_config(MISTRAL)
    assert spec.sliding_window == (4096,) * 32
    assert spec.window(31) == 4096
    assert spec_from_config({**MISTRAL, "sliding_window": None}).window(0) is None
    # A window as long as the context hides nothing.
    assert spec_from_config({**MISTRAL, "sliding_window": 32768}).sliding_window == ()
    assert spec_from_config({**MISTRAL, "head_dim": 160}).head_dim == 160


def test_values_that_files_leave_out():
    llama = spec_from_config(without(LLAMA, "num_key_value_heads", "head_dim", "rope_scaling", "rope_theta"))
    assert (llama.num_kv_heads, llama.head_dim, llama.rope) == (32, 64, RopeSpec(10000.0, 64))
    assert spec_from_config(without(MISTRAL, "num_key_value_heads")).num_kv_heads == 8
    assert spec_from_config(without(MISTRAL, "sliding_window")).window(0) == 4096
    assert spec_from_config(without(QWEN3, "head_dim")).head_dim == 128
    assert spec_from_config(without(LLAMA, "architectures")).family == "llama"
    assert spec_from_config(without(LLAMA, "bos_token_id", "eos_token_id")).bos_token_id is None


def test_windows_of_chosen_layers():
    sliding = {**QWEN2, "use_sliding_window": True, "sliding_window": 1024, "num_hidden_layers": 4}
    by_number = spec_from_config({**sliding, "max_window_layers": 3})
    assert by_number.sliding_window == (None, None, None, 1024)
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    by_kind = spec_from_config({**sliding, "layer_types": kinds})
    assert by_kind.sliding_window == (1024, None, 1024, None)
    assert spec_from_config({**sliding, "layer_types": ["full_attention"] * 4}).sliding_window == ()


def test_context_stretched_by_yarn():
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    spec = spec_from_config({**QWEN2, "rope_scaling": yarn})
    assert spec.context_len == 131072
    assert spec.rope == RopeSpec(1000000.0, 64, "yarn", factor=4.0, original_context=32768)
    assert (
        spec_from_config({**QWEN2, "max_position_embeddings": 200000, "rope_scaling": yarn}).context_len
        == 200000
    )


def llama3(**changes: object) -> dict[str, Any]:
    return {**LLAMA, "rope_scaling": {**LLAMA["rope_scaling"], **changes}}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            {**LLAMA, "architectures": ["MixtralForCausalLM"]},
            ["architectures", "MixtralForCausalLM", "LlamaForC"],
        ),
        ({**LLAMA, "architectures": None, "model_type": "gemma3"}, ["model_type", "gemma3", "qwen3"]),
        ({**LLAMA, "hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq"}}, ["quantization_config", "gptq", "GGUF"]),
        ({**QWEN3, "num_experts": 128}, ["num_experts", "128", "mixture of experts"]),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            ["rope_type", "dynamic", "yarn"],
        ),
        ({**LLAMA, "rope_scaling": {"type": "longrope", "factor": 2.0}}, ["type", "longrope", "yarn"]),
        (
            {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [16]}},
            ["mrope_section"],
        ),
        (llama3(beta_fast=8), ["beta_fast", "llama3"]),
        ({**LLAMA, "partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        (
            {**without(LLAMA, "rope_scaling"), "rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            ["rope_parameters", "per kind of layer"],
        ),
        ({**LLAMA, "sliding_window": 4096}, ["sliding_window", "4096", "llama"]),
        ({**QWEN2, "layer_types": ["chunked_attention"] * 24}, ["layer_types", "chunked_attention"]),
        ({**MISTRAL, "layer_types": ["full_attention"] * 32}, ["layer_types", "mistral"]),
    ],
)
def test_unsupported_configurations_are_named(config, named):
    with pytest.raises(UnsupportedModel) as caught:
        spec_from_config(config)
    assert all(part in str(caught.value) for part in named), caught.value


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (without(LLAMA, "hidden_size"), ["hidden_size", "missing"]),
        (without(LLAMA, "architectures", "model_type"), ["model_type", "missing"]),
        ({**LLAMA, "num_hidden_layers": "many"}, ["num_hidden_layers", "'many'", "whole number"]),
        ({**LLAMA, "num_hidden_layers": True}, ["num_hidden_layers", "True", "whole number"]),
        ({**LLAMA, "num_hidden_layers": 0}, ["num_hidden_layers", "0", "at least 1"]),
        ({**LLAMA, "num_key_value_heads": 5}, ["num_key_value_heads", "5", "32"]),
        ({**LLAMA, "head_dim": 33}, ["head_dim", "33", "even"]),
        ({**LLAMA, "rms_norm_eps": float("nan")}, ["rms_norm_eps", "nan", "finite"]),
        ({**LLAMA, "rope_theta": 0}, ["rope_theta", "0", "above zero"]),
        ({**LLAMA, "rope_scaling": "linear"}, ["rope_scaling", "'linear'", "object"]),
        ({**LLAMA, "rope_scaling": {"type": "linear"}}, ["rope_scaling", "factor", "missing"]),
        (llama3(high_freq_factor=1.0), ["high_freq_factor", "1.0", "above low_freq_factor"]),
        ({**LLAMA, "tie_word_embeddings": "yes"}, ["tie_word_embeddings", "'yes'", "true or false"]),
        ({**LLAMA, "eos_token_id": "</s>"}, ["eos_token_id", "'</s>'", "whole number"]),
        ({**QWEN2, "layer_types": ["full_attention"]}, ["layer_types", "24"]),
        ({**QWEN2, "layer_types": ["sliding_attention"] * 24}, ["layer_types", "sliding_window"]),
    ],
)
def test_corrupt_configurations_are_named(config, named):
    with pytest.raises(CorruptModel) as caught:
        spec_from_config(config)
    assert all(part in str(caught.value) for part in named), caught.value


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 100000.0,
    "llama.rope.dimension_count": 64,
    "llama.vocab_size": 49152,
    "llama.expert_count": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 7,
}


def tensors(*names: str, **shapes: tuple[int, ...]) -> dict[str, WeightTensor]:
    """Tensors that matter for their presence, and an embedding padded beyond the tokenizer's vocabulary."""
    found = {"token_embd.weight": (49280, 576), **dict.fromkeys(names, (1,)), **shapes}
    return {n: WeightTensor(n, "F32", s, np.zeros((1, 4 * s[-1]), np.uint8)) for n, s in found.items()}


def test_gguf():
    spec = spec_from_gguf(GGUF, tensors())
    assert (spec.family, spec.num_layers, spec.num_heads, spec.num_kv_heads) == ("llama", 2, 9, 3)
    assert (spec.hidden_size, spec.intermediate_size, spec.head_dim) == (576, 1536, 64)
    assert (spec.vocab_size, spec.context_len, spec.norm_eps) == (49280, 8192, 1e-5)
    assert spec.rope == RopeSpec(100000.0, 64)
    assert spec.tied_embeddings
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2, 7))
    assert not any([spec.qkv_bias, spec.output_bias, spec.mlp_bias])


def test_gguf_tells_by_its_tensors():
    assert not spec_from_gguf(GGUF, tensors("output.weight")).tied_embeddings
    spec = spec_from_gguf(GGUF, tensors("blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_down.bias"))
    assert spec.qkv_bias
    assert spec.output_bias
    assert spec.mlp_bias


def renamed(arch: str, **more: object) -> dict[str, object]:
    values = {k.replace("llama.", f"{arch}."): v for k, v in GGUF.items()}
    return {**values, "general.architecture": arch, **{f"{arch}.{k}": v for k, v in more.items()}}


def test_gguf_qwen():
    qwen3 = spec_from_gguf(
        renamed(
            "qwen3",
            **{"attention.key_length": 128, "attention.value_length": 128, "rope.dimension_count": 128},
        ),
        tensors(),
    )
    assert (qwen3.family, qwen3.head_dim, qwen3.qk_norm, qwen3.qkv_bias) == ("qwen3", 128, True, False)
    assert spec_from_gguf(renamed("qwen2"), tensors()).qkv_bias


def test_gguf_scaling():
    def rope(**more: object) -> RopeSpec:
        return spec_from_gguf(renamed("llama", **more), tensors()).rope

    linear = RopeSpec(100000.0, 64, "linear", factor=4.0)
    assert rope(**{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}) == linear
    assert rope(**{"rope.scaling.factor": 4.0}) == linear
    assert rope(**{"rope.scale_linear": 4.0}) == linear
    assert rope(**{"rope.scaling.type": "none", "rope.scaling.factor": 4.0}) == RopeSpec(100000.0, 64)
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 2048,
        "rope.scaling.yarn_beta_fast": 16.0,
    }
    found = rope(**yarn)
    assert (found.scaling, found.factor, found.original_context, found.beta_fast) == ("yarn", 4.0, 2048, 16.0)
    assert rope(**yarn, **{"rope.scaling.yarn_attn_factor": 1.5}).attention_factor == 1.5
    multiplied = rope(**yarn, **{"rope.scaling.attn_factor": 2.0}).attention_factor
    assert multiplied == pytest.approx(2.0 * (0.1 * np.log(4.0) + 1.0))


def test_gguf_window():
    spec = spec_from_gguf(renamed("llama", **{"attention.sliding_window": 4096}), tensors())
    assert spec.sliding_window == (4096, 4096)
    assert (
        spec_from_gguf(renamed("qwen2", **{"attention.sliding_window": 8192}), tensors()).sliding_window == ()
    )


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (renamed("gemma3"), ["general.architecture", "gemma3", "qwen3"]),
        (renamed("mistral"), ["general.architecture", "mistral", "llama"]),
        (renamed("llama", expert_count=8), ["llama.expert_count", "8"]),
        (renamed("llama", logit_scale=0.5), ["llama.logit_scale", "0.5"]),
        (renamed("llama", **{"rope.dimension_count": 32}), ["llama.rope.dimension_count", "32", "64"]),
        (renamed("llama", **{"attention.value_length": 32}), ["llama.attention.value_length", "32", "64"]),
        (renamed("qwen2", **{"attention.causal": False}), ["qwen2.attention.causal", "False"]),
        (renamed("qwen2", **{"attention.sliding_window": 512}), ["qwen2.attention.sliding_window", "512"]),
        (
            renamed("llama", **{"rope.scaling.type": "longrope"}),
            ["llama.rope.scaling.type", "longrope", "yarn"],
        ),
        (renamed("llama", **{"rope.scaling.attn_factor": 2.0}), ["llama.rope.scaling.attn_factor", "yarn"]),
        (
            renamed("llama", **{"rope.scaling.type": "yarn", "rope.scaling.yarn_ext_factor": 0.5}),
            ["llama.rope.scaling.yarn_ext_factor", "0.5"],
        ),
    ],
)
def test_unsupported_gguf_is_named(values, named):
    with pytest.raises(UnsupportedModel) as caught:
        spec_from_gguf(values, tensors())
    assert all(part in str(caught.value) for part in named), caught.value


@pytest.mark.parametrize(
    ("values", "found", "named"),
    [
        (without(GGUF, "llama.block_count"), tensors(), ["llama.block_count", "missing"]),
        (without(GGUF, "general.architecture"), tensors(), ["general.architecture", "missing"]),
        (
            renamed("llama", **{"attention.head_count": [9, 9]}),
            tensors(),
            ["llama.attention.head_count", "[9, 9]"],
        ),
        (renamed("llama", **{"attention.head_count_kv": 2}), tensors(), ["head_count_kv", "2", "9"]),
        (GGUF, {}, ["token_embd.weight", "missing"]),
        (GGUF, tensors(**{"rope_freqs.weight": (16,)}), ["rope_freqs.weight", "16", "32"]),
    ],
)
def test_corrupt_gguf_is_named(values, found, named):
    with pytest.raises(CorruptModel) as caught:
        spec_from_gguf(values, found)
    assert all(part in str(caught.value) for part in named), caught.value
