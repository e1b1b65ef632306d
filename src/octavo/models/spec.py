"""What a decoder is: the sizes and switches that tell one family of models from another."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding; frequencies are computed by ``models/rope.py``.

    Attributes:
        theta: base of the frequencies.
        rotary_dim: leading dimensions of a head that rotate, paired (i, i + rotary_dim / 2).
        scaling: which scaling variant; its parameters are below, unused ones keep their defaults.
        freq_divisors: one divisor per frequency, as GGUF files store llama3's scaling, or empty.
    """

    theta: float
    rotary_dim: int
    scaling: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    freq_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Sizes and switches of one decoder-only transformer.

    Legend used all over Octavo: B rows, T step tokens, L layers, Hq/Hkv query/KV heads, D head dim,
    P tokens per block, N blocks.

    Attributes:
        sliding_window: per layer, how many tokens back (itself included) a token sees; None is all.
        qkv_bias, output_bias, mlp_bias: whether q, k and v, the attention output, the MLP have biases.
        qk_norm: whether q and k get an RMS norm per head.
        eos_token_ids: tokens that end a sequence, from the model's own files.
    """

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_len: int
    norm_eps: float
    rope: RopeSpec
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: tuple[int | None, ...] = ()
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def window(self, layer: int) -> int | None:
        """Sliding window of ``layer`` in tokens, or None."""
        return self.sliding_window[layer] if self.sliding_window else None
