"""Families whose keys and values come from one compressed row a token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..tensors import QUERY_KEY_GAIN, RESIDUAL_GAIN, TensorPlan, matrix, norm
from .family import Family, Sizes, Value, embeddings
from .sublayers import Experts, experts, feed_forward, norms


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Ranks of the compressed queries and rows; how much of a head's key turns and does not; values of a head."""

    q_rank: int = 64
    kv_rank: int = 64
    n_rot: int = 64
    n_nope: int = 32
    n_value: int = 64

    def keys(self, *, compressed: bool) -> dict[str, Value]:
        """Return the metadata; `compressed` if the cache is to hold the compressed row."""
        of_heads: dict[str, Value] = {"key_length": self.n_nope + self.n_rot, "value_length": self.n_value}
        named = of_heads
        if compressed:
            named = {f"{name}_mla": n for name, n in of_heads.items()}
            named |= {"head_count_kv": 1, "key_length": self.kv_rank + self.n_rot, "value_length": self.kv_rank}
        named |= {"q_lora_rank": self.q_rank, "kv_lora_rank": self.kv_rank}
        return {f"attention.{name}": n for name, n in named.items()} | {"rope.dimension_count": self.n_rot}


def _attention(
    at: str, sizes: Sizes, latent: Latent, *, compressed: bool, residual_gain: float = RESIDUAL_GAIN
) -> Iterator[TensorPlan]:
    """Return the tensors of attention. compressed: each head has its own matrices from row to keys and to values"""
    yield matrix(f"{at}attn_q_a", latent.q_rank, sizes.n_embd, 1.0)
    yield norm(f"{at}attn_q_a_norm", latent.q_rank)
    yield matrix(f"{at}attn_q_b", sizes.n_head * (latent.n_nope + latent.n_rot), latent.q_rank, QUERY_KEY_GAIN)
    yield matrix(f"{at}attn_kv_a_mqa", latent.kv_rank + latent.n_rot, sizes.n_embd, QUERY_KEY_GAIN)
    yield norm(f"{at}attn_kv_a_norm", latent.kv_rank)
    if compressed:
        yield matrix(f"{at}attn_k_b", latent.kv_rank, latent.n_nope, QUERY_KEY_GAIN, sizes.n_head)
        yield matrix(f"{at}attn_v_b", latent.n_value, latent.kv_rank, 1.0, sizes.n_head)
    else:
        yield matrix(f"{at}attn_kv_b", sizes.n_head * (latent.n_nope + latent.n_value), latent.kv_rank, 1.0)
    yield matrix(f"{at}attn_output", sizes.n_embd, sizes.n_head * latent.n_value, residual_gain)


_YARN: dict[str, Value] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 512,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}


def deepseek2() -> Family:
    """Return a model whose cache holds the compressed row, which all heads attend to; YaRN; experts from layer 2 on."""
    return _deepseek2(Sizes(n_layer=3), Latent(), Experts(n_shared=1), _YARN)


def glm47_flash() -> Family:
    """DeepSeek's architecture without YaRN, rows as long as real ones. The last layer predicts a second token: not run.

    All experts are chosen. Long rows round so much that a token between two experts would get the other one.
    """
    sizes, e = Sizes(n_layer=4, rope_base=1e6), Experts(n_used=4, n_shared=1)
    return _deepseek2(sizes, Latent(kv_rank=512, n_nope=192, n_value=256), e, {"nextn_predict_layers": 1})


def deepseek2_decompressed() -> Family:
    """Return a model of the time before llama.cpp kept compressed rows: keys and values of all heads are cached."""
    return _deepseek2(Sizes(n_layer=3, n_head_kv=4), Latent(), Experts(n_shared=1), _YARN, compressed=False)


def _deepseek2(
    sizes: Sizes, latent: Latent, e: Experts, others: dict[str, Value], *, compressed: bool = True
) -> Family:
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += _attention(at, sizes, latent, compressed=compressed)
        tensors += experts(at, sizes, e, choice_biases=True) if il else feed_forward(at, sizes)
    if "nextn_predict_layers" in others:
        at = f"blk.{sizes.n_layer - 1}.nextn."
        tensors.append(matrix(f"{at}eh_proj", sizes.n_embd, 2 * sizes.n_embd, 1.0))
        tensors += norms(at, sizes, "enorm", "hnorm", "shared_head_norm")
    keys = sizes.keys() | e.keys() | latent.keys(compressed=compressed)
    keys |= {
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.0,
    }
    return Family(architecture="deepseek2", keys=keys | others, tensors=tuple(tensors))


def minicpm3() -> Family:
    """Return a model whose rows llama.cpp decompresses: the cache holds plain keys and values, of different lengths."""
    sizes, latent = Sizes(n_layer=3, n_head=3, n_head_kv=3), Latent(n_rot=32, n_nope=64)
    tensors = embeddings(sizes, tied=True)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        # llama.cpp multiplies embeddings by 12
        tensors += _attention(at, sizes, latent, compressed=False, residual_gain=12 * RESIDUAL_GAIN)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | latent.keys(compressed=False)
    return Family(architecture="minicpm3", keys=keys, tensors=tuple(tensors), tokenizer="spm")
