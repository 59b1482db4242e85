"""Attention weights, recomputed for a few rows, as reference."""

from __future__ import annotations

import numpy as np

from .head import Head
from .types import Floats, Scores


@np.errstate(invalid="ignore", over="ignore")
def attention(head: Head, scale: float | Floats | None = None) -> Floats:
    """A: softmax of scale * Q K^T over the cells not after each row -> (G, W, n); a row that sees no cell gives zeros.

    A head's learnt sink takes part in the softmax, so a row with one sums to less than 1.

    `scale` may be one number or one a row, (W,); None = the head's own. A row that meets a key or a query that is not
    finite gives NaN throughout, which the selection refuses: the softmax of -inf would be a silent 0.
    """
    queries, row_positions = head.rows()
    scale = np.asarray(head.attention_scale if scale is None else scale, dtype=np.float64)
    logits = queries.astype(np.float64) @ head.keys.astype(np.float64).T * scale.reshape(-1, 1)
    logits[~np.isfinite(logits)] = np.nan
    if head.softcap:
        logits = head.softcap * np.tanh(logits / head.softcap)
    seen = head.positions <= row_positions[:, None]
    return weights_with_sinks(np.where(seen, logits, -np.inf), head)


@np.errstate(invalid="ignore", over="ignore")
def weights_with_sinks(logits: Floats, head: Head) -> Floats:
    """Softmax over the cells, and over the sink of each query head if it has one, of (G, W, n)."""
    if head.sinks is not None:
        sinks = np.broadcast_to(np.asarray(head.sinks, dtype=np.float64).reshape(-1, 1, 1), (*logits.shape[:2], 1))
        logits = np.concatenate([logits, sinks], axis=-1)  # one more cell, without a value
    most = np.max(logits, axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isneginf(most), 0.0, most))
    total = weights.sum(axis=-1, keepdims=True)
    shares = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
    return np.asarray(shares[..., : len(head.keys)])


def window_attention(head: Head) -> Scores:
    """a_win: mean over query heads and rows -> (n,)."""
    return np.asarray(attention(head).mean(axis=(0, 1)))
