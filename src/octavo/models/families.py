"""The families of models Octavo runs, told by what their files say, and the tensor names of both worlds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Windows = Literal["none", "all layers", "chosen layers"]


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one family apart.

    Attributes:
        architecture: name in ``architectures`` of config.json.
        qkv_bias: biases of q, k and v come with the family, whatever its files say.
        attention_bias: config.json may ask for biases of all four attention layers under that name.
        qk_norm: q and k get an RMS norm per head.
        windows: whether ``sliding_window`` of config.json is unknown to the family, holds for all layers, or
            for those that ``layer_types`` or ``max_window_layers`` choose.
        defaults: what config.json may leave out.
    """

    name: str
    architecture: str
    windows: Windows
    qkv_bias: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    defaults: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


# The defaults are those of transformers' configuration classes, since files are written with them in mind.
_QWEN_DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}

FAMILIES = (
    Family("llama", "LlamaForCausalLM", "none", attention_bias=True),
    Family(
        "mistral",
        "MistralForCausalLM",
        "all layers",
        defaults=MappingProxyType({"num_key_value_heads": 8, "sliding_window": 4096}),
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        "chosen layers",
        qkv_bias=True,
        defaults=MappingProxyType(_QWEN_DEFAULTS),
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        "chosen layers",
        attention_bias=True,
        qk_norm=True,
        defaults=MappingProxyType({**_QWEN_DEFAULTS, "head_dim": 128}),
    ),
)


@dataclass(frozen=True, slots=True)
class TensorNames:
    """How one kind of file names the weights of a decoder.

    Attributes:
        layer: prefix of a layer's tensors, with ``{}`` for its number.
        parts: name of each of a layer's parts, without prefix and ``.weight`` or ``.bias``.
        derived: endings of tensors that some files carry though they can be computed.
    """

    embedding: str
    final_norm: str
    lm_head: str
    layer: str
    parts: Mapping[str, str]
    derived: tuple[str, ...]

    def of(self, part: str, layer: int, kind: Literal["weight", "bias"] = "weight") -> str:
        """Full name of the tensor that is ``part`` of ``layer``."""
        return f"{self.layer.format(layer)}{self.parts[part]}.{kind}"


NAMES: Mapping[str, TensorNames] = MappingProxyType(
    {
        "safetensors": TensorNames(
            embedding="model.embed_tokens.weight",
            final_norm="model.norm.weight",
            lm_head="lm_head.weight",
            layer="model.layers.{}.",
            parts={
                "attention_norm": "input_layernorm",
                "q": "self_attn.q_proj",
                "k": "self_attn.k_proj",
                "v": "self_attn.v_proj",
                "q_norm": "self_attn.q_norm",
                "k_norm": "self_attn.k_norm",
                "output": "self_attn.o_proj",
                "mlp_norm": "post_attention_layernorm",
                "gate": "mlp.gate_proj",
                "up": "mlp.up_proj",
                "down": "mlp.down_proj",
            },
            derived=(".rotary_emb.inv_freq",),
        ),
        "gguf": TensorNames(
            embedding="token_embd.weight",
            final_norm="output_norm.weight",
            lm_head="output.weight",
            layer="blk.{}.",
            parts={
                "attention_norm": "attn_norm",
                "q": "attn_q",
                "k": "attn_k",
                "v": "attn_v",
                "q_norm": "attn_q_norm",
                "k_norm": "attn_k_norm",
                "output": "attn_output",
                "mlp_norm": "ffn_norm",
                "gate": "ffn_gate",
                "up": "ffn_up",
                "down": "ffn_down",
            },
            derived=("rope_freqs.weight", ".attn_rot_embd.weight"),
        ),
    }
)
