"""Families whose layers attend or keep a recurrent state, and those that only do the latter."""

from __future__ import annotations

from ..tensors import QUERY_KEY_GAIN
from .family import Family, Sizes, embeddings
from .parts import Mamba, attention, feed_forward, mamba2, norms, short_conv

__all__ = ["granite_hybrid", "lfm2", "mamba2_alone"]


def lfm2() -> Family:
    """Gated convolutions of three tokens, and attention in every third layer or so."""
    sizes = Sizes(n_layer=6, n_head=2, n_head_kv=1)
    attends = [il in (2, 4) for il in range(sizes.n_layer)]
    tensors = embeddings(sizes, tied=True, output_norm="token_embd_norm")
    for il, yes in enumerate(attends):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes, head_norms=QUERY_KEY_GAIN) if yes else short_conv(at, sizes, 3)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | {"attention.head_count_kv": sizes.kv_heads(attends), "shortconv.l_cache": 3}
    return Family(architecture="lfm2", keys=keys, tensors=tuple(tensors))


def granite_hybrid() -> Family:
    """Mamba 2 with some layers of attention, all without rotary positions as in Granite 4."""
    sizes, mamba = Sizes(n_layer=6), Mamba()
    attends = [il in (2, 5) for il in range(sizes.n_layer)]
    tensors = embeddings(sizes, tied=True)
    for il, yes in enumerate(attends):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes) if yes else mamba2(at, sizes, mamba)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | mamba.keys()
    keys |= {
        "attention.head_count_kv": sizes.kv_heads(attends),
        "attention.scale": 0.125,
        "embedding_scale": 3.0,
        "residual_scale": 0.8,
        "logit_scale": 2.0,
        "rope.scaling.finetuned": False,
    }
    return Family(architecture="granitehybrid", keys=keys, tensors=tuple(tensors))


def mamba2_alone() -> Family:
    """No layer attends; the metadata says 0 heads and no feed-forward part."""
    sizes, mamba = Sizes(n_layer=4), Mamba()
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm")
        tensors += mamba2(at, sizes, mamba)
    keys = sizes.keys() | mamba.keys() | {"feed_forward_length": 0, "attention.head_count": 0}
    for name in ("attention.head_count_kv", "attention.key_length", "attention.value_length"):
        del keys[name]
    for name in ("rope.dimension_count", "rope.freq_base"):
        del keys[name]
    return Family(architecture="mamba2", keys=keys, tensors=tuple(tensors))
