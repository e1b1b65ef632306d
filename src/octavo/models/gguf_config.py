"""From the key/values of a GGUF file to a DecoderSpec.

Keys are those of the GGUF specification. A key of the architecture that is not read here is refused unless
it says "nothing" (zero, false, empty): what a file asks for is never skipped.
"""

from collections.abc import Mapping
from dataclasses import replace

from octavo.core.errors import CorruptModel
from octavo.models.families import FAMILIES, NAMES
from octavo.models.fields import Fields
from octavo.models.rope import attention_factor, stretched_context
from octavo.models.spec import DecoderSpec, RopeSpec
from octavo.weights.encoding import dequantize
from octavo.weights.tensor import WeightTensor

SOURCE = "GGUF metadata"
ROPE_FREQS = "rope_freqs.weight"
ARCHITECTURES = ("llama", "qwen2", "qwen3")  # files of Mistral call themselves llama
INTERLEAVED = frozenset({"llama"})  # architectures whose files hold q and k rows as (0, D/2, 1, D/2 + 1, ...)
READ_KEYS = frozenset(
    {
        "vocab_size",  # the embedding's rows say it, padding included
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.causal",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",  # tells how the model was made, not how it runs
        "rope.scaling.yarn_log_multiplier",
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "tensor_data_layout",  # a remark of old converters
    }
)


def spec_from_gguf(values: Mapping[str, object], tensors: Mapping[str, WeightTensor]) -> DecoderSpec:
    """Read a GGUF file's key/values; ``tensors`` tell what they leave out (biases, vocabulary, llama3).

    Raises:
        UnsupportedModel: an architecture, scaling or key Octavo does not run; names it.
        CorruptModel: a key that is missing or makes no sense; names it.
    """
    general = Fields(values, SOURCE, "general.")
    architecture = general.text("architecture")
    family = next((f for f in FAMILIES if f.name == architecture and f.name in ARCHITECTURES), None)
    if family is None:
        raise general.unsupported("architecture", f"supported are {', '.join(ARCHITECTURES)}")
    model = Fields(values, SOURCE, f"{architecture}.")
    _refuse_the_unread(model)
    names = NAMES["gguf"]
    num_heads = model.integer("attention.head_count")
    hidden_size = model.integer("embedding_length")
    head_dim = model.integer("attention.key_length", hidden_size // num_heads)
    num_kv_heads = model.integer("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise model.wrong("attention.head_count_kv", f"a divisor of attention.head_count, {num_heads}")
    for key in ("attention.value_length", "rope.dimension_count"):
        if model.integer(key, head_dim) != head_dim:
            raise model.unsupported(key, f"it must equal the heads' size, {head_dim}")
    if not model.flag("attention.causal", True):
        raise model.unsupported("attention.causal")
    if names.embedding not in tensors:
        raise CorruptModel(f"tensor {names.embedding} is missing")
    num_layers = model.integer("block_count")
    context_len = model.integer("context_length")
    rope = _rope(model, head_dim, context_len, tensors.get(ROPE_FREQS))
    context_len = stretched_context(rope, context_len)
    tokenizer = Fields(values, SOURCE, "tokenizer.ggml.")
    bos = tokenizer.integers("bos_token_id")
    return DecoderSpec(
        family=family.name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=model.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=tensors[names.embedding].shape[0],
        context_len=context_len,
        norm_eps=model.positive("attention.layer_norm_rms_epsilon"),
        rope=rope,
        tied_embeddings=names.lm_head not in tensors,
        qkv_bias=family.qkv_bias or names.of("q", 0, "bias") in tensors,
        output_bias=names.of("output", 0, "bias") in tensors,
        mlp_bias=names.of("down", 0, "bias") in tensors,
        qk_norm=family.qk_norm,
        sliding_window=_windows(model, num_layers, context_len),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=tuple(
            dict.fromkeys(tokenizer.integers("eos_token_id") + tokenizer.integers("eot_token_id"))
        ),
    )


def _refuse_the_unread(model: Fields) -> None:
    for name, value in model.values.items():
        key = name.removeprefix(model.prefix)
        if key != name and key not in READ_KEYS and value:
            raise model.unsupported(key)


def _rope(model: Fields, head_dim: int, context_len: int, divisors: WeightTensor | None) -> RopeSpec:
    if head_dim % 2:
        raise CorruptModel(f"{SOURCE}: a key length of {head_dim}; rotary embedding needs an even number")
    theta = model.positive("rope.freq_base", 10000.0)
    # The first files knew linear scaling only, under another key and without a type. A factor of 0 is none.
    factor = model.number("rope.scaling.factor", model.number("rope.scale_linear", 0.0)) or 1.0
    scaling = model.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    attn_factor = model.positive("rope.scaling.attn_factor", 1.0)
    if factor <= 0:
        raise model.wrong("rope.scaling.factor", "above zero")
    if attn_factor != 1.0 and scaling != "yarn":
        raise model.unsupported("rope.scaling.attn_factor", "it is with rope.scaling.type yarn")
    if divisors is not None:
        if scaling != "none":
            raise model.unsupported("rope.scaling.type", f"not beside a tensor {ROPE_FREQS}")
        if divisors.shape != (head_dim // 2,):
            raise CorruptModel(f"tensor {ROPE_FREQS} has shape {divisors.shape}; expected {(head_dim // 2,)}")
        return RopeSpec(theta, head_dim, freq_divisors=tuple(map(float, dequantize(divisors))))
    if scaling == "none":
        return RopeSpec(theta, head_dim)
    if scaling == "linear":
        return RopeSpec(theta, head_dim, "linear", factor=factor)
    if scaling != "yarn":
        raise model.unsupported("rope.scaling.type", "supported are none, linear, yarn")
    # The share of extrapolation; llama.cpp writes its default, 1, as -1.
    if model.number("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise model.unsupported("rope.scaling.yarn_ext_factor", "only 1.0 is")
    # Converters write attention_factor of config.json, the whole factor, as yarn_attn_factor.
    whole = model.get("rope.scaling.yarn_attn_factor")
    if whole is not None and attn_factor != 1.0:
        raise model.unsupported("rope.scaling.attn_factor", "not beside rope.scaling.yarn_attn_factor")
    rope = RopeSpec(
        theta,
        head_dim,
        "yarn",
        factor=factor,
        original_context=model.integer("rope.scaling.original_context_length", context_len),
        beta_fast=model.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=model.positive("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if whole is None else model.positive("rope.scaling.yarn_attn_factor"),
        mscale=1.0,
        mscale_all_dim=model.number("rope.scaling.yarn_log_multiplier", 0.0),
    )
    if attn_factor == 1.0:
        return rope
    return replace(rope, attention_factor=attention_factor(rope) * attn_factor)


def _windows(model: Fields, num_layers: int, context_len: int) -> tuple[int | None, ...]:
    """GGUF has no say on which layers of these architectures slide, so a window holds for all."""
    if not model.get("attention.sliding_window"):
        return ()
    window = model.integer("attention.sliding_window")
    if window >= context_len:
        return ()
    if model.prefix != "llama.":
        raise model.unsupported("attention.sliding_window", "the file does not say which layers it is for")
    return (window,) * num_layers
