"""Writes a model directory of Qwen3-0.6B's shape with random bfloat16 weights: for speed, not for answers.

python benchmarks/random_model.py DIRECTORY [--layers 28]
octavo bench scenes --model DIRECTORY --only a --only c
"""

import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CONTEXT = 1024, 3072, 16, 8, 128, 151936, 40960
_PATTERN = 1 << 24  # values that differ; after them they come again


def config(num_layers: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": num_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    }


def shapes(num_layers: int) -> dict[str, tuple[int, ...]]:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (HIDDEN,),
        "self_attn.q_proj": (q, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.k_norm": (HEAD_DIM,),
        "self_attn.o_proj": (HIDDEN, q),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    return {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        **{
            f"model.layers.{i}.{name}.weight": shape
            for i in range(num_layers)
            for name, shape in layer.items()
        },
        "model.norm.weight": (HIDDEN,),
    }


def write_weights(path: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file; matrices are normal with a spread of 1 / sqrt(inputs), norms are ones."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in tensors.items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    normal = np.random.default_rng(0).standard_normal(_PATTERN, np.float32)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for shape in tensors.values():
            values = (
                np.resize(normal, shape) / np.float32(shape[-1]) ** 0.5 if len(shape) > 1 else np.ones(shape)
            )
            bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32) >> 16
            file.write(bits.astype("<u2").tobytes())


def write_tokenizer(path: Path) -> None:
    """Bytes and fillers: every id of the vocabulary is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = alphabet + [f"<filler {i}>" for i in range(VOCAB - len(alphabet))]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--layers", type=int, default=28)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    (arguments.directory / "config.json").write_text(json.dumps(config(arguments.layers), indent=1))
    write_tokenizer(arguments.directory / "tokenizer.json")
    write_weights(arguments.directory / "model.safetensors", shapes(arguments.layers))


if __name__ == "__main__":
    main()
