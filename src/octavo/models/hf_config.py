"""From a Hugging Face ``config.json`` to a DecoderSpec.

What Octavo cannot do is refused by the name of its key; nothing that changes the result is skipped.
"""

from collections.abc import Mapping

from octavo.core.errors import CorruptModel, UnsupportedModel
from octavo.models.families import FAMILIES, Family
from octavo.models.fields import Fields
from octavo.models.rope import stretched_context
from octavo.models.spec import DecoderSpec, RopeSpec

SOURCE = "config.json"
ROPE_KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}
COMMON_ROPE_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def spec_from_config(
    values: Mapping[str, object], generation: Mapping[str, object] | None = None
) -> DecoderSpec:
    """Read a parsed config.json, and generation_config.json if there is one.

    Raises:
        UnsupportedModel: a family, activation, scaling or layout Octavo does not run; names it.
        CorruptModel: a key that is missing or makes no sense; names it.
    """
    family = _family(Fields(values, SOURCE))
    config = Fields({**family.defaults, **values}, SOURCE)
    _refuse_the_unsupported(config)
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    head_dim = config.integer("head_dim", hidden_size // num_heads)
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    num_layers = config.integer("num_hidden_layers")
    max_positions = config.integer("max_position_embeddings")
    rope = _rope(config, head_dim, max_positions)
    context_len = stretched_context(rope, max_positions)
    attention_bias = family.attention_bias and config.flag("attention_bias", False)
    generation_eos = Fields(generation or {}, "generation_config.json").integers("eos_token_id")
    bos = config.integers("bos_token_id")
    return DecoderSpec(
        family=family.name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size"),
        context_len=context_len,
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        rope=rope,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        sliding_window=_windows(config, family, num_layers, context_len),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=tuple(dict.fromkeys(config.integers("eos_token_id") + generation_eos)),
    )


def _family(config: Fields) -> Family:
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        key, found = "architectures", str(architectures[0])
        known = {family.architecture: family for family in FAMILIES}
    else:
        key, found = "model_type", config.text("model_type")
        known = {family.name: family for family in FAMILIES}
    if found not in known:
        raise config.unsupported(key, f"supported are {', '.join(known)}")
    return known[found]


def _refuse_the_unsupported(config: Fields) -> None:
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.unsupported("hidden_act", "only 'silu' is")
    if config.get("quantization_config"):
        raise config.unsupported("quantization_config", "use an unquantized or a GGUF version of the model")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(key):
            raise config.unsupported(key, "mixture of experts is not")


def _rope(config: Fields, head_dim: int, max_positions: int) -> RopeSpec:
    """Rotary parameters in the old style (rope_theta, rope_scaling) or the new (rope_parameters)."""
    rope = config.section("rope_scaling" if config.get("rope_scaling") else "rope_parameters")
    if any(isinstance(value, Mapping) for value in rope.values.values()):
        raise UnsupportedModel(f"{rope.source}: parameters per kind of layer are not supported")
    type_key = "rope_type" if rope.get("rope_type") is not None else "type"
    scaling = rope.text(type_key, "default")
    if scaling not in ROPE_KEYS:
        raise rope.unsupported(type_key, f"supported are {', '.join(ROPE_KEYS)}")
    for key, value in rope.values.items():
        if value is not None and key not in COMMON_ROPE_KEYS | ROPE_KEYS[scaling]:
            raise rope.unsupported(key, f"rope_type {scaling!r} does not know it")
    for fields in (config, rope):
        if fields.number("partial_rotary_factor", 1.0) != 1.0:
            raise fields.unsupported("partial_rotary_factor", "only 1.0 is")
    if head_dim % 2:
        raise CorruptModel(f"{SOURCE}: head_dim is {head_dim}; rotary embedding needs an even number")
    theta = rope.positive("rope_theta", config.positive("rope_theta", 10000.0))
    if scaling == "default":
        return RopeSpec(theta, head_dim)
    if scaling == "linear":
        return RopeSpec(theta, head_dim, "linear", factor=rope.positive("factor"))
    original = config.integer(
        "original_max_position_embeddings", rope.integer("original_max_position_embeddings", max_positions)
    )
    if scaling == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if high <= low:
            raise rope.wrong("high_freq_factor", f"above low_freq_factor, {low}")
        return RopeSpec(
            theta,
            head_dim,
            "llama3",
            factor=rope.positive("factor"),
            original_context=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    attention_factor = rope.get("attention_factor")
    return RopeSpec(
        theta,
        head_dim,
        "yarn",
        factor=rope.positive("factor", max_positions / original),
        original_context=original,
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        attention_factor=None if attention_factor is None else rope.positive("attention_factor"),
        mscale=rope.number("mscale", 0.0),
        mscale_all_dim=rope.number("mscale_all_dim", 0.0),
        truncate=rope.flag("truncate", True),
    )


def _windows(config: Fields, family: Family, num_layers: int, context_len: int) -> tuple[int | None, ...]:
    """Sliding window of each layer; empty if no layer has one shorter than the context."""
    layer_types = _layer_types(config, num_layers)
    sliding = [kind == "sliding_attention" for kind in layer_types] or [False] * num_layers
    wanted = config.get("sliding_window") is not None
    if family.windows == "chosen layers":
        wanted = wanted and config.flag("use_sliding_window", False)
        if wanted and not layer_types:
            first = config.integer("max_window_layers", minimum=0)
            sliding = [layer >= first for layer in range(num_layers)]
    elif wanted and family.windows == "all layers":
        if layer_types and not all(sliding):
            raise config.unsupported("layer_types", f"all layers of a {family.name} model slide")
        sliding = [True] * num_layers
    elif wanted and config.integer("sliding_window") < context_len:
        raise config.unsupported("sliding_window", f"a {family.name} model has none")
    if not any(sliding):
        return ()
    if not wanted:
        raise CorruptModel(f"{SOURCE}: layer_types has sliding_attention, but no sliding_window is in use")
    window = config.integer("sliding_window")
    return tuple(window if s else None for s in sliding) if window < context_len else ()


def _layer_types(config: Fields, num_layers: int) -> list[str]:
    kinds = config.get("layer_types")
    if kinds is None:
        return []
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise config.wrong("layer_types", f"a list of num_hidden_layers = {num_layers} kinds of attention")
    if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
        raise config.unsupported("layer_types", "only full_attention and sliding_attention are")
    return kinds
