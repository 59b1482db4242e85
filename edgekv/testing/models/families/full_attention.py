"""Families all of whose layers attend to everything, each with something of its own."""

from __future__ import annotations

from ..tensors import QUERY_KEY_GAIN, matrix
from .family import Family, Sizes, embeddings
from .sublayers import Experts, attention, experts, feed_forward, norms


def phi3() -> Family:
    """Return a model with one matrix for queries, keys and values. llama.cpp ignores the window that the file names."""
    sizes = Sizes(n_layer=3, n_embd=256)
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes, fused=True)
        tensors += feed_forward(at, sizes, fused=True)
    return Family(
        architecture="phi3",
        keys=sizes.keys() | {"attention.sliding_window": 80},
        tensors=tuple(tensors),
        tokenizer="spm",
    )


def smollm3() -> Family:
    """Return a model without rotary positions in every fourth layer."""
    sizes = Sizes(n_layer=4)
    tensors = embeddings(sizes, tied=True)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes)
        tensors += feed_forward(at, sizes)
    return Family(architecture="smollm3", keys=sizes.keys(), tensors=tuple(tensors))


def qwen2_vl() -> Family:
    """The language part of Qwen2-VL: rotary positions in the three sections of time, height and width."""
    sizes = Sizes(n_layer=3, n_embd=256)
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes, biases=True)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | {"rope.dimension_sections": [8, 12, 12, 0]}
    return Family(architecture="qwen2vl", keys=keys, tensors=tuple(tensors))


def qwen3_vl() -> Family:
    """The language part of Qwen3-VL: the sections are interleaved. The last pair is in none, and never turns."""
    sizes = Sizes(n_layer=3, n_embd=256)
    tensors = embeddings(sizes, tied=True)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes, head_norms=QUERY_KEY_GAIN)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | {"rope.dimension_sections": [12, 10, 10, 0]}
    return Family(architecture="qwen3vl", keys=keys, tensors=tuple(tensors))


def glm4_moe() -> Family:
    """Return a model whose heads turn by half; experts from layer 2 on. The last layer, for a token, is idle."""
    sizes, e = Sizes(n_layer=5), Experts(n_shared=1)
    last = sizes.n_layer - 1
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "post_attention_norm")
        tensors += attention(at, sizes, head_norms=QUERY_KEY_GAIN, biases=True)
        tensors += experts(at, sizes, e, choice_biases=True) if il else feed_forward(at, sizes)
    at = f"blk.{last}.nextn."
    tensors.append(matrix(f"{at}eh_proj", sizes.n_embd, 2 * sizes.n_embd, 1.0))
    tensors += norms(at, sizes, "enorm", "hnorm", "shared_head_norm")
    keys = sizes.keys() | e.keys()
    keys |= {
        "leading_dense_block_count": 1,
        "nextn_predict_layers": 1,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.0,
        "rope.dimension_count": sizes.head_dim // 2,
    }
    return Family(architecture="glm4moe", keys=keys, tensors=tuple(tensors))
