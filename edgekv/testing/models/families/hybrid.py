"""Families whose layers attend or keep a recurrent state, and those that only do the latter."""

from __future__ import annotations

from collections.abc import Sequence

from ..tensors import QUERY_KEY_GAIN, TensorPlan, matrix
from .family import Family, Sizes, Value, embeddings
from .sublayers import Experts, Mamba, attention, delta_net, experts, feed_forward, mamba1, mamba2, norms, short_conv

_TINY_LFM2 = Sizes(n_layer=6, n_embd=256)


def lfm2(sizes: Sizes = _TINY_LFM2, attending: Sequence[int] = (2, 4), window: int = 0) -> Family:
    """Gated convolutions of three tokens, and attention in every third layer or so; 0 = attention sees everything."""
    attends = [il in attending for il in range(sizes.n_layer)]
    tensors = embeddings(sizes, tied=True, output_norm="token_embd_norm")
    for il, yes in enumerate(attends):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes, head_norms=QUERY_KEY_GAIN) if yes else short_conv(at, sizes, 3)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | {"attention.head_count_kv": sizes.kv_heads(attends), "shortconv.l_cache": 3}
    if window:
        keys["attention.sliding_window"] = window
    return Family(architecture="lfm2", keys=keys, tensors=tuple(tensors), vocab_size=sizes.vocab_size)


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
    """Return a model without attention; the metadata gives 0 heads and no feed-forward part."""
    sizes, mamba = Sizes(n_layer=4), Mamba()
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm")
        tensors += mamba2(at, sizes, mamba)
    keys = sizes.without_attention() | mamba.keys() | {"feed_forward_length": 0}
    return Family(architecture="mamba2", keys=keys, tensors=tuple(tensors))


def falcon_h1() -> Family:
    """Return a model whose layers attend and keep a state side by side."""
    sizes, mamba = Sizes(n_layer=3), Mamba()
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm")
        # llama.cpp looks for this norm by a name without ".weight"
        tensors.append(TensorPlan(f"{at}ffn_norm", (sizes.n_embd,), mean=1.0, spread=0.1))
        tensors += attention(at, sizes)
        tensors += mamba2(at, sizes, mamba)
        tensors += feed_forward(at, sizes)
    return Family(architecture="falcon-h1", keys=sizes.keys() | mamba.keys(), tensors=tuple(tensors))


def jamba() -> Family:
    """Mamba 1, one layer of attention without rotary positions, and experts in every second layer."""
    sizes, mamba, e = Sizes(n_layer=4, n_embd=256), Mamba(inner_size=512, state_size=16), Experts(n_ff=192)
    attends = [il == 2 for il in range(sizes.n_layer)]
    tensors = embeddings(sizes)
    for il, yes in enumerate(attends):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes) if yes else mamba1(at, sizes, mamba)
        tensors += experts(at, sizes, e) if il % 2 else feed_forward(at, sizes)
    keys = sizes.keys() | mamba.keys() | e.keys() | {"attention.head_count_kv": sizes.kv_heads(attends)}
    for name in ("ssm.group_count", "expert_feed_forward_length"):  # its experts are as wide as its other layers
        del keys[name]
    return Family(architecture="jamba", keys=keys, tensors=tuple(tensors))


def nemotron_h() -> Family:
    """Return a model whose layers are Mamba 2, attention without rotary positions, or a feed-forward part."""
    layers = "M-M*-M*-"
    sizes, mamba = Sizes(n_layer=len(layers)), Mamba()
    tensors = embeddings(sizes)
    for il, kind in enumerate(layers):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm")
        if kind == "M":
            tensors += mamba2(at, sizes, mamba)
        elif kind == "*":
            tensors += attention(at, sizes)
        else:
            tensors += feed_forward(at, sizes, gated=False)
    keys = sizes.keys() | mamba.keys()
    keys |= {
        "attention.head_count_kv": sizes.kv_heads(kind == "*" for kind in layers),
        "feed_forward_length": [sizes.n_ff if kind == "-" else 0 for kind in layers],
        "attention.layer_norm_epsilon": 1e-5,
    }
    return Family(architecture="nemotron_h", keys=keys, tensors=tuple(tensors))


# Three layers of gated delta nets to one of gated attention, which turns a part of a head.
_DELTA_NET = Mamba(inner_size=128, state_size=32, time_step_rank=4, group_count=2)
_INTERVAL = 4
_N_ROT = 32


def _qwen_keys(sizes: Sizes) -> dict[str, Value]:
    keys = sizes.keys() | _DELTA_NET.keys()
    return keys | {"full_attention_interval": _INTERVAL, "rope.dimension_count": _N_ROT}


def _qwen_mixer(at: str, sizes: Sizes, il: int) -> list[TensorPlan]:
    """Return norms, and attention or a delta net without the matrices of its step and decay."""
    tensors = [*norms(at, sizes, "attn_norm", "post_attention_norm")]
    if _attends(il):
        return [*tensors, *attention(at, sizes, head_norms=QUERY_KEY_GAIN, gated=True)]
    return [*tensors, *delta_net(at, sizes, _DELTA_NET)]


def _attends(il: int) -> bool:
    return il % _INTERVAL == _INTERVAL - 1


def qwen3_next() -> Family:
    """Delta nets and attention, with experts of which one is shared and gated."""
    sizes, e = Sizes(n_layer=8), Experts(n_shared=1)
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += _qwen_mixer(at, sizes, il)
        if not _attends(il):
            tensors.append(matrix(f"{at}ssm_ba", 2 * _DELTA_NET.time_step_rank, sizes.n_embd, 1.0))
        tensors += experts(at, sizes, e)
        tensors.append(TensorPlan(f"{at}ffn_gate_inp_shexp.weight", (sizes.n_embd,), spread=0.1))
    keys = _qwen_keys(sizes) | e.keys() | {"expert_shared_feed_forward_length": e.n_ff}
    del keys["expert_shared_count"]
    return Family(architecture="qwen3next", keys=keys, tensors=tuple(tensors))


def qwen35() -> Family:
    """Delta nets and attention, whose rotary positions have the three sections of text, height and width."""
    sizes = Sizes(n_layer=8)
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += _qwen_mixer(at, sizes, il)
        if not _attends(il):
            tensors.append(matrix(f"{at}ssm_alpha", _DELTA_NET.time_step_rank, sizes.n_embd, 1.0))
            tensors.append(matrix(f"{at}ssm_beta", _DELTA_NET.time_step_rank, sizes.n_embd, 1.0))
        tensors += feed_forward(at, sizes)
    keys = _qwen_keys(sizes) | {"rope.dimension_sections": [6, 5, 5, 0]}
    return Family(architecture="qwen35", keys=keys, tensors=tuple(tensors))
