"""Paged attention in float64, short and obviously right: what every kernel is measured against.

Legend: T step tokens, n tokens of a row, Hq/Hkv query and KV heads, D head dim.
"""

import numpy as np
import numpy.typing as npt

from octavo.attention.plan import StepInputs
from octavo.storage.arena import Arena
from octavo.storage.codec import read_kv

Float64Array = npt.NDArray[np.float64]


def attend(
    q: npt.NDArray[np.floating],
    k: npt.NDArray[np.floating],
    v: npt.NDArray[np.floating],
    *,
    window: int | None = None,
) -> Float64Array:
    """Causal softmax attention of a sequence's last tokens over all of it: float64, the shape of ``q``.

    Args:
        q: [m, Hq, D], the queries of the last m of the n tokens; query head h reads KV head
            ``h // (Hq / Hkv)``.
        k: [n, Hkv, D].
        v: [n, Hkv, D].
        window: position p sees positions above p - window, and all up to p if None.
    """
    num_queries, num_heads, head_dim = q.shape
    num_tokens, num_kv_heads, _ = k.shape
    k64, v64 = (np.repeat(x.astype(np.float64), num_heads // num_kv_heads, axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k64) / np.sqrt(head_dim)
    queries = np.arange(num_tokens - num_queries, num_tokens)[:, None]
    keys = np.arange(num_tokens)[None, :]
    visible = (keys <= queries) & (keys > queries - (window or num_tokens))
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Float64Array = np.einsum("hqk,khd->qhd", weights, v64)
    return out


def paged_attention(
    q: npt.NDArray[np.floating], step: StepInputs, arena: Arena, layer: int, *, window: int | None = None
) -> Float64Array:
    """Attention of each step token over its row's cache up to itself: float64 [T, Hq, D], as ``q``.

    The K and V of the step's own tokens are already in the cache.
    """
    out = np.zeros(q.shape, np.float64)
    for row, start, stop, context_len in zip(
        step.rows, step.query_start[:-1], step.query_start[1:], step.context_len, strict=True
    ):
        k, v = read_kv(arena, layer, step.block_tables, int(row), int(context_len + stop - start))
        out[start:stop] = attend(q[start:stop], k, v, window=window)
    return out


def rotate(
    x: npt.NDArray[np.floating], cos: npt.NDArray[np.floating], sin: npt.NDArray[np.floating]
) -> Float64Array:
    """Rotary embedding of heads [T, H, D] with one [T, rotary_dim / 2] row of cos and sin per token.

    Dimension i turns with i + rotary_dim / 2; dimensions from rotary_dim on are left alone.
    """
    half = cos.shape[-1]
    out = x.astype(np.float64)
    c, s = cos.astype(np.float64)[:, None], sin.astype(np.float64)[:, None]
    first, second = out[..., :half].copy(), out[..., half : 2 * half].copy()
    out[..., :half] = first * c - second * s
    out[..., half : 2 * half] = second * c + first * s
    return out
