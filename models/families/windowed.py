"""Families some of whose layers see the newest tokens only."""

from __future__ import annotations

import math

from ..tensors import QUERY_KEY_GAIN, RESIDUAL_GAIN
from .family import Family, Sizes, embeddings
from .parts import attention, feed_forward, norms

__all__ = ["WINDOW", "gemma3"]

# Tokens that a windowed layer sees; no multiple of a block.
WINDOW = 80


def _gemma_gain(sizes: Sizes) -> float:
    """Embeddings are multiplied by sqrt(n_embd), and layers must keep up."""
    return RESIDUAL_GAIN * math.sqrt(sizes.n_embd)


def gemma3() -> Family:
    """Five windowed layers to one that sees everything, with rotary positions of their own."""
    sizes = Sizes(n_layer=7)
    tensors = embeddings(sizes, tied=True)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += norms(at, sizes, "post_attention_norm", "post_ffw_norm", mean=_gemma_gain(sizes))
        tensors += attention(at, sizes, head_norms=QUERY_KEY_GAIN)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | {
        "attention.sliding_window": WINDOW,
        "rope.freq_base": 1_000_000.0,
        "rope.freq_base_swa": 10_000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    return Family(architecture="gemma3", keys=keys, tensors=tuple(tensors), tokenizer="spm")
