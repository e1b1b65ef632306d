"""The real model: SmolLM2-135M from its 4-bit GGUF file against transformers in float32, same weights."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_files import deinterleave
from harness import PagedModel
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.backends.cpu import CpuBackend
from octavo.backends.oracle import OracleBackend
from octavo.models.loading import LoadedModel, load_model
from octavo.text.loading import load_text

BLOCK_SIZE = 16
TOLERANCE = 1e-3
NUM_COMPARED = 64
NUM_GENERATED = 64
LICENSE = Path(__file__).parents[2] / "LICENSE"
TEXTS = [
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Die Würde des Menschen ist unantastbar. 人人生而自由 🙂",
]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> LoadedModel:
    return load_model(smollm2_path)


@pytest.fixture(scope="module")
def prompts(model: LoadedModel) -> list[list[int]]:
    """1 token, around one block, many blocks, and everyday texts."""
    tokenizer, _ = load_text(model.checkpoint)
    license_text = tokenizer.encode(LICENSE.read_text())
    lengths = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 600)
    return [license_text[7 : 7 + n] for n in lengths] + [tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> LlamaForCausalLM:
    """transformers' Llama with the file's weights, dequantized by the gguf library and put in order here."""
    reader = gguf.GGUFReader(smollm2_path)

    def value(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    config = LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
    )
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    torch.set_num_threads(1)
    with torch.device("meta"):  # no time lost on random weights
        llama = LlamaForCausalLM(config)
    llama.model.rotary_emb = LlamaRotaryEmbedding(config)
    weights = {}
    for hf_name in llama.state_dict():
        tensor = tensors[names.get_name(hf_name.replace("lm_head", "model.embed_tokens"), (".weight",))]
        data = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        if "q_proj" in hf_name or "k_proj" in hf_name:
            data = deinterleave(data, len(data) // 64)
        weights[hf_name] = torch.from_numpy(np.require(data, requirements=["C", "W"]))
    llama.load_state_dict(weights, assign=True)
    llama.tie_weights()
    return llama.eval()


@torch.no_grad()
def expected_logits(reference: LlamaForCausalLM, tokens: list[int], positions: Any) -> Any:
    keep = torch.tensor(positions)
    return reference(torch.tensor([tokens]), logits_to_keep=keep, use_cache=False).logits[0].numpy()


def test_logits_equal_transformers(model, prompts, reference):
    paged = PagedModel(
        model, CpuBackend(activations="float32"), num_rows=len(prompts), max_len=640, max_tokens=600
    )
    assert [len(p) for p in prompts[:5]] == [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 600]
    # Of the longest prompt only the last positions are compared; they come in chunks, among the others.
    start = 600 - NUM_COMPARED
    paged.step({4: prompts[4][:start]})
    shown = [*prompts[:4], prompts[4][start:], *prompts[5:]]
    assert_equal_logits(reference, prompts, paged.logits(shown, chunks=(16, 7, 40, 1, 5)))


def test_oracle_equals_transformers(model, prompts, reference):
    short = [prompt for prompt in prompts if len(prompt) < 600]
    paged = PagedModel(model, OracleBackend(), num_rows=len(short), max_len=32)
    assert_equal_logits(reference, short, paged.logits(short, chunks=(17, 8)))


def assert_equal_logits(reference, prompts, logits) -> None:
    """Compare the logits of each prompt's last positions, as many as there are."""
    for prompt, found in zip(prompts, logits, strict=True):
        positions = range(len(prompt) - len(found), len(prompt))
        expected = expected_logits(reference, prompt, positions)
        assert np.abs(found - expected).max() < TOLERANCE
        assert np.ptp(expected) > 20


def test_greedy_tokens_equal_transformers(model, prompts, reference):
    paged = PagedModel(
        model, CpuBackend(activations="float32"), num_rows=len(prompts), max_len=700, max_tokens=800, seed=3
    )
    generated = paged.greedy(prompts, NUM_GENERATED)
    for prompt, tokens in zip(prompts, generated, strict=True):
        # Given all tokens before it, each must be transformers' choice; so its generation is the same.
        positions = range(len(prompt) - 1, len(prompt) + NUM_GENERATED - 1)
        logits = expected_logits(reference, prompt + tokens, positions)
        assert tokens == logits.argmax(axis=-1).tolist()
    assert len({tuple(tokens) for tokens in generated}) == len(prompts)


def test_spec(model):
    spec = model.spec
    assert (spec.family, spec.num_layers, spec.num_heads, spec.num_kv_heads) == ("llama", 30, 9, 3)
    assert (spec.hidden_size, spec.head_dim, spec.vocab_size, spec.context_len) == (576, 64, 49152, 8192)
    assert spec.tied_embeddings
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))
    assert model.weights.embedding.encoding == "Q8_0"
    assert {w.encoding for w in model.weights.layers[29].qkv} == {"Q4_1"}
