"""Tiny random models made with transformers: seeded, every weight and bias far from its initial value."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

torch.set_num_threads(1)

VOCAB_SIZE = 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _llama(**changes: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{**COMMON, **changes}))


def _mistral(**changes: Any) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**{**COMMON, **changes}))


def _qwen2(**changes: Any) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**{**COMMON, **changes}))


def tiny_qwen3(**changes: Any) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**{**COMMON, **changes}))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: _llama(),
    "llama-llama3": lambda: _llama(rope_parameters=dict(LLAMA3)),
    "llama-linear-tied": lambda: _llama(rope_parameters=dict(LINEAR), tie_word_embeddings=True),
    "llama-yarn": lambda: _llama(rope_parameters=dict(YARN)),
    "llama-biases-mha": lambda: _llama(attention_bias=True, mlp_bias=True, num_key_value_heads=4),
    "llama-wide": lambda: _llama(hidden_size=256, intermediate_size=256, num_hidden_layers=1, head_dim=64),
    "qwen2": lambda: _qwen2(),
    "qwen2-tied": lambda: _qwen2(tie_word_embeddings=True),
    "qwen2-some-layers-slide": lambda: _qwen2(use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": lambda: tiny_qwen3(head_dim=32),
    "qwen3-tied-biases": lambda: tiny_qwen3(head_dim=48, attention_bias=True, tie_word_embeddings=True),
    "mistral": lambda: _mistral(sliding_window=7, num_key_value_heads=1),
    "mistral-long-window": lambda: _mistral(sliding_window=40, max_position_embeddings=512),
    "mistral-no-window": lambda: _mistral(sliding_window=None, head_dim=32),
}


def make(name: str) -> PreTrainedModel:
    """The named model in float32, all of its parameters random.

    Initial values would hide mistakes: biases of zero, norm weights of one, logits that hardly differ.
    """
    torch.manual_seed(sum(name.encode()))
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[1] ** 0.5)
    return model


def save(model: PreTrainedModel, directory: Path, **options: Any) -> Path:
    model.save_pretrained(directory, **options)
    return directory


@torch.no_grad()
def logits(model: PreTrainedModel, tokens: list[int]) -> npt.NDArray[np.float32]:
    """transformers' logits [n, vocab] of every token, in float32."""
    found: npt.NDArray[np.float32] = model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
    return found


def prompts(*lengths: int, vocab_size: int = VOCAB_SIZE, seed: int = 5) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, vocab_size, n).tolist() for n in lengths]
