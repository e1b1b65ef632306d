"""Rotary position embedding: the frequencies of every scaling variant, and their tables.

Sources: rotary embedding, arXiv:2104.09864; linear ("position interpolation"), arXiv:2306.15595; llama3, the
reference code of Llama 3.1; YaRN, arXiv:2309.00071 (sections 3.2 to 3.4), with the options that DeepSeek and
gpt-oss added to it in transformers. Frequencies are those of pairs (i, i + rotary_dim / 2).
"""

import math

import numpy as np
import numpy.typing as npt

from octavo.models.spec import RopeSpec

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]


def rope_tables(rope: RopeSpec, max_positions: int) -> tuple[Float32, Float32]:
    """Cosines and sines of all positions, multiplied by the attention factor.

    Returns:
        Two float32 arrays [max_positions, rotary_dim / 2], computed in float64.
    """
    angles = np.outer(np.arange(max_positions, dtype=np.float64), inverse_frequencies(rope))
    factor = attention_factor(rope)
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def inverse_frequencies(rope: RopeSpec) -> Float64:
    """Radians per position of each pair, float64 [rotary_dim / 2], after scaling."""
    plain = rope.theta ** (-np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim)
    if rope.freq_divisors:
        plain /= np.asarray(rope.freq_divisors)
    match rope.scaling:
        case "default":
            return plain
        case "linear":
            return plain / rope.factor
        case "llama3":
            return _llama3(rope, plain)
        case "yarn":
            return _yarn(rope, plain)


def attention_factor(rope: RopeSpec) -> float:
    """What YaRN multiplies q and k with, so that attention keeps its sharpness; 1 in the other variants."""
    if rope.scaling != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def stretched_context(rope: RopeSpec, context_len: int) -> int:
    """The context in tokens; files that ask for YaRN often leave it at its length before stretching."""
    return (
        max(context_len, int(rope.original_context * rope.factor)) if rope.scaling == "yarn" else context_len
    )


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _llama3(rope: RopeSpec, plain: Float64) -> Float64:
    """Divide slow frequencies by the factor, keep fast ones, go over smoothly in between.

    Fast and slow are told by how often a pair turns within the original context.
    """
    turns = rope.original_context * plain / (2 * math.pi)
    keep: Float64 = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return plain * (keep + (1.0 - keep) / rope.factor)


def _yarn(rope: RopeSpec, plain: Float64) -> Float64:
    """Keep pairs that turn more than beta_fast times in the original context, divide those below beta_slow.

    Between them the share kept falls linearly with the pair's index.
    """

    def pair_that_turns(turns: float) -> float:
        context = rope.original_context / (turns * 2 * math.pi)
        return rope.rotary_dim * math.log(context) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.rotary_dim - 1)
    width = (last - first) or 0.001  # a step instead of a ramp
    divided: Float64 = np.clip((np.arange(len(plain)) - first) / width, 0.0, 1.0)
    return plain * (1.0 - divided + divided / rope.factor)
