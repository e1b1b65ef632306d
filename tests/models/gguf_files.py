"""Writes models of transformers as GGUF files, as llama.cpp's converter lays them out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

Array = npt.NDArray[Any]
Type = gguf.GGMLQuantizationType
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}


def interleave(rows: Array, num_heads: int) -> Array:
    """Rows of q or k from (0 .. D/2 - 1, D/2 .. D - 1) to (0, D/2, 1, D/2 + 1, ...) in each head."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def deinterleave(rows: Array, num_heads: int) -> Array:
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def write(
    model: PreTrainedModel,
    path: Path,
    *,
    matrix_type: Callable[[str], Type] = lambda name: Type.F32,
    encode: Callable[[Array, Type], Array] = gguf.quantize,
    values: dict[str, Any] | None = None,
    tensors: dict[str, Array] | None = None,
) -> Path:
    """Write ``model``; afterwards it holds what the file does, so quantization is no difference.

    Args:
        matrix_type: type of each matrix, by its GGUF name.
        encode: turns float32 rows into the type's bytes.
        values: more key/values of the architecture, by the key's end.
        tensors: more tensors.
    """
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in (values or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(f"{writer.arch}.{key}", value)
    for hf_name, parameter in model.named_parameters():
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert name is not None
        data = parameter.detach().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        num_heads = next((n for part, n in heads.items() if part in hf_name), 0)
        permuted = num_heads > 0 and writer.arch == "llama"
        if permuted:
            data = interleave(data, num_heads)
        kind = matrix_type(name) if data.ndim == 2 else Type.F32
        encoded = encode(np.ascontiguousarray(data), kind)
        writer.add_tensor(name, encoded, raw_dtype=kind)
        held = gguf.dequantize(encoded, kind).reshape(data.shape).astype(np.float32)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(deinterleave(held, num_heads) if permuted else held))
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
