"""Families whose keys and values come from one compressed row a token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..tensors import QUERY_KEY_GAIN, RESIDUAL_GAIN, TensorPlan, matrix, norm
from .family import Family, Sizes, embeddings
from .parts import Experts, experts, feed_forward, norms

__all__ = ["deepseek2", "minicpm3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Ranks of the compressed queries and rows; how much of a head's key turns and does not; values of a head."""

    q_rank: int = 64
    kv_rank: int = 64
    n_rot: int = 64
    n_nope: int = 32
    n_value: int = 64


def _latent(at: str, sizes: Sizes, latent: Latent, residual_gain: float = RESIDUAL_GAIN) -> Iterator[TensorPlan]:
    """All but what makes keys and values of the compressed row."""
    yield matrix(f"{at}attn_q_a", latent.q_rank, sizes.n_embd, 1.0)
    yield norm(f"{at}attn_q_a_norm", latent.q_rank)
    yield matrix(f"{at}attn_q_b", sizes.n_head * (latent.n_nope + latent.n_rot), latent.q_rank, QUERY_KEY_GAIN)
    yield matrix(f"{at}attn_kv_a_mqa", latent.kv_rank + latent.n_rot, sizes.n_embd, QUERY_KEY_GAIN)
    yield norm(f"{at}attn_kv_a_norm", latent.kv_rank)
    yield matrix(f"{at}attn_output", sizes.n_embd, sizes.n_head * latent.n_value, residual_gain)


def deepseek2() -> Family:
    """The cache holds the compressed row, which all heads attend to; experts from the second layer on."""
    sizes, latent, e = Sizes(n_layer=3, n_head_kv=1), Latent(), Experts(n_shared=1)
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += _latent(at, sizes, latent)
        tensors.append(matrix(f"{at}attn_k_b", latent.kv_rank, latent.n_nope, QUERY_KEY_GAIN, sizes.n_head))
        tensors.append(matrix(f"{at}attn_v_b", latent.n_value, latent.kv_rank, 1.0, sizes.n_head))
        tensors += experts(at, sizes, e) if il else feed_forward(at, sizes)
    keys = sizes.keys() | e.keys()
    keys |= {
        "attention.key_length": latent.kv_rank + latent.n_rot,
        "attention.value_length": latent.kv_rank,
        "attention.key_length_mla": latent.n_nope + latent.n_rot,
        "attention.value_length_mla": latent.n_value,
        "attention.q_lora_rank": latent.q_rank,
        "attention.kv_lora_rank": latent.kv_rank,
        "rope.dimension_count": latent.n_rot,
        "leading_dense_block_count": 1,
    }
    return Family(architecture="deepseek2", keys=keys, tensors=tuple(tensors))


def minicpm3() -> Family:
    """llama.cpp decompresses the row, so the cache holds plain keys and values, of different lengths."""
    sizes, latent = Sizes(n_layer=3, n_head=3, n_head_kv=3), Latent(n_rot=32, n_nope=64)
    tensors = embeddings(sizes, tied=True)
    n_decompressed = sizes.n_head * (latent.n_nope + latent.n_value)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += _latent(at, sizes, latent, 12 * RESIDUAL_GAIN)  # llama.cpp multiplies embeddings by 12
        tensors.append(matrix(f"{at}attn_kv_b", n_decompressed, latent.kv_rank, 1.0))
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | {
        "attention.key_length": latent.n_nope + latent.n_rot,
        "attention.value_length": latent.n_value,
        "attention.q_lora_rank": latent.q_rank,
        "attention.kv_lora_rank": latent.kv_rank,
        "rope.dimension_count": latent.n_rot,
    }
    return Family(architecture="minicpm3", keys=keys, tensors=tuple(tensors), tokenizer="spm")
