"""Families some of whose layers see the newest tokens only."""

from __future__ import annotations

import math

from ..tensors import QUERY_KEY_GAIN, RESIDUAL_GAIN, TensorPlan, matrix, norm
from .family import VOCAB_SIZE, Family, Sizes, Value, embeddings
from .sublayers import Experts, attention, experts, feed_forward, norms

# tokens that a windowed layer sees; no multiple of a block
WINDOW = 80
_WINDOW: dict[str, Value] = {"attention.sliding_window": WINDOW}


def _gemma_norms(
    at: str, sizes: Sizes, *, attention_gain: float = RESIDUAL_GAIN, ff_gain: float = RESIDUAL_GAIN
) -> list[TensorPlan]:
    """Return norms before and after each sublayer; gains keep up with the embeddings, which sqrt(n_embd) multiplies."""
    scale = math.sqrt(sizes.n_embd)
    return [
        *norms(at, sizes, "attn_norm", "ffn_norm"),
        *norms(at, sizes, "post_attention_norm", mean=attention_gain * scale),
        *norms(at, sizes, "post_ffw_norm", mean=ff_gain * scale),
    ]


def gemma2() -> Family:
    """Return a model with windows in every second layer; scores and logits are capped."""
    sizes = Sizes(n_layer=4)
    tensors = embeddings(sizes, tied=True)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += _gemma_norms(at, sizes)
        tensors += attention(at, sizes)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | _WINDOW | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 30.0}
    return Family(architecture="gemma2", keys=keys, tensors=tuple(tensors), tokenizer="spm")


_TINY_GEMMA3 = Sizes(n_layer=7, rope_base=1_000_000.0)


def gemma3(sizes: Sizes = _TINY_GEMMA3, window: int = WINDOW, rope_factor: float = 8.0) -> Family:
    """Five windowed layers to one that sees everything, with rotary positions of their own.

    rope_factor  the trained context over the one before it was stretched; 1 = it was not
    """
    tensors = embeddings(sizes, tied=True)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += _gemma_norms(at, sizes)
        tensors += attention(at, sizes, head_norms=QUERY_KEY_GAIN)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | {"attention.sliding_window": window, "rope.freq_base_swa": 10_000.0}
    if rope_factor != 1.0:
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope_factor}
    return Family(
        architecture="gemma3", keys=keys, tensors=tuple(tensors), tokenizer="spm", vocab_size=sizes.vocab_size
    )


# Gemma 3n and 4 do not divide scores by sqrt(head_dim); the norms of queries and keys bring that.
def _unscaled(head_dim: int) -> float:
    return QUERY_KEY_GAIN / math.pow(head_dim, 0.25)


# Sizes of Gemma 3n that llama.cpp fixes.
_N_ALTUP, _N_EMBD_ALTUP, _LAUREL_RANK = 4, 256, 64


def gemma3n() -> Family:
    """Four windowed layers to one full one; layers from the 20th on attend with the rows of the 18th or the 19th.

    Every token has an embedding for each layer, and four streams are predicted and corrected around each layer.
    """
    sizes = Sizes(n_layer=25, n_embd=64, n_head=2, n_head_kv=1, n_ff=96)
    n_per_layer = sizes.n_layer * _N_EMBD_ALTUP
    streams = _N_ALTUP - 1
    tensors = embeddings(sizes, tied=True)
    tensors += [
        matrix("altup_proj", sizes.n_embd, sizes.n_embd, 1.0, streams),
        matrix("altup_unembd_proj", sizes.n_embd, sizes.n_embd, 1.0, streams),
        matrix("per_layer_token_embd", VOCAB_SIZE, n_per_layer, math.sqrt(sizes.n_layer)),
        matrix("per_layer_model_proj", n_per_layer, sizes.n_embd, 1.0),
        norm("per_layer_proj_norm", _N_EMBD_ALTUP),
    ]
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        # its first layers feed forward the largest twentieth of their values: if these count much, the last digit of
        # a sum decides everything behind them
        tensors += _gemma_norms(at, sizes, attention_gain=0.4, ff_gain=0.075)
        tensors += attention(at, sizes, head_norms=_unscaled(sizes.head_dim))
        tensors += feed_forward(at, sizes)
        tensors += _per_layer(at, sizes, _N_EMBD_ALTUP, gain=0.25)
        tensors += norms(at, sizes, "altup_correct_scale", "altup_router_norm", "laurel_post_norm")
        tensors += [
            matrix(f"{at}altup_router", _N_ALTUP, sizes.n_embd, 1.0),
            TensorPlan(f"{at}altup_correct_coef.weight", (_N_ALTUP, _N_ALTUP), spread=0.1),
            TensorPlan(f"{at}altup_predict_coef.weight", (_N_ALTUP * _N_ALTUP, _N_ALTUP), spread=0.1),
            matrix(f"{at}laurel_l", _LAUREL_RANK, sizes.n_embd, 1.0),
            matrix(f"{at}laurel_r", sizes.n_embd, _LAUREL_RANK, 1.0),
        ]
    keys = sizes.keys() | _WINDOW | {"rope.freq_base": 1_000_000.0, "rope.freq_base_swa": 10_000.0}
    return Family(architecture="gemma3n", keys=keys, tensors=tuple(tensors), tokenizer="spm")


def _per_layer(at: str, sizes: Sizes, n_embd: int, gain: float = 1.0) -> list[TensorPlan]:
    """Return the tensors that add a layer's own embedding of a token."""
    return [
        matrix(f"{at}inp_gate", n_embd, sizes.n_embd, 1.0),
        matrix(f"{at}proj", sizes.n_embd, n_embd, 1.0),
        *norms(at, sizes, "post_norm", mean=gain),
    ]


def gemma4() -> Family:
    """Windowed layers have smaller heads than full ones; the last three attend with the rows of the two before them."""
    windowed = [False, True, False, True, False, False]
    n_shared, n_embd_layer, head_dim, head_dim_swa = 3, 32, 128, 64
    sizes = Sizes(n_layer=len(windowed), head_dim=head_dim)
    n_per_layer = sizes.n_layer * n_embd_layer
    tensors = embeddings(sizes, tied=True)
    tensors += [
        # half of a full layer's frequencies do not turn
        TensorPlan(
            "rope_freqs.weight", (head_dim // 2,), values=tuple((head_dim // 4) * [1.0] + (head_dim // 4) * [1e30])
        ),
        matrix("per_layer_token_embd", VOCAB_SIZE, n_per_layer, math.sqrt(sizes.n_layer)),
        matrix("per_layer_model_proj", n_per_layer, sizes.n_embd, 1.0),
        norm("per_layer_proj_norm", n_embd_layer),
    ]
    for il, is_windowed in enumerate(windowed):
        at = f"blk.{il}."
        of_layer = Sizes(n_layer=sizes.n_layer, head_dim=head_dim_swa if is_windowed else head_dim)
        has_keys = il < sizes.n_layer - n_shared
        tensors += _gemma_norms(at, sizes)
        tensors += attention(at, of_layer, head_norms=_unscaled(of_layer.head_dim), has_keys=has_keys)
        tensors += feed_forward(at, sizes)
        tensors += _per_layer(at, sizes, n_embd_layer)
        tensors.append(TensorPlan(f"{at}layer_output_scale.weight", (1,), mean=1.0))
    keys = sizes.keys() | _WINDOW
    keys |= {
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": n_shared,
        "attention.key_length_swa": head_dim_swa,
        "attention.value_length_swa": head_dim_swa,
        "embedding_length_per_layer_input": n_embd_layer,
        "rope.dimension_count_swa": head_dim_swa,
        "rope.freq_base": 1_000_000.0,
        "rope.freq_base_swa": 10_000.0,
        "final_logit_softcapping": 30.0,
    }
    return Family(architecture="gemma4", keys=keys, tensors=tuple(tensors), tokenizer="spm")


_TINY_GPT_OSS, _TINY_EXPERTS = Sizes(n_layer=4, rope_base=150_000.0), Experts()


def gpt_oss(sizes: Sizes = _TINY_GPT_OSS, e: Experts = _TINY_EXPERTS, window: int = WINDOW) -> Family:
    """Return a model with windows in every second layer; each head has a sink that takes attention, without a value."""
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "post_attention_norm")
        tensors += attention(at, sizes, biases=True)
        tensors.append(TensorPlan(f"{at}attn_output.bias", (sizes.n_embd,), spread=0.1))
        # A sink weighs as much as some hundred tokens, so leaving it out, or counting it twice, shows.
        tensors.append(TensorPlan(f"{at}attn_sinks.weight", (sizes.n_head,), mean=5.0, spread=0.5))
        tensors += experts(at, sizes, e, biases=True)
    keys = sizes.keys() | e.keys()
    keys |= {
        "attention.sliding_window": window,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 512,
    }
    return Family(architecture="gpt-oss", keys=keys, tensors=tuple(tensors), vocab_size=sizes.vocab_size)


def cohere2() -> Family:
    """Three windowed layers to one full one without rotary positions; attention and feed-forward side by side."""
    sizes = Sizes(n_layer=4, n_embd=256)
    tensors = embeddings(sizes, tied=True)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm")
        tensors += attention(at, sizes)
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | _WINDOW | {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.25}
    return Family(architecture="cohere2", keys=keys, tensors=tuple(tensors))


def olmo2() -> Family:
    """Return a model as OLMo 3: three windowed layers to a full one; norms over all heads, and after each sublayer."""
    sizes = Sizes(n_layer=4, n_embd=256)
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "post_attention_norm", "post_ffw_norm")
        tensors += attention(at, sizes)
        tensors.append(norm(f"{at}attn_q_norm", sizes.n_embd, QUERY_KEY_GAIN))
        tensors.append(norm(f"{at}attn_k_norm", sizes.n_head_kv * sizes.head_dim, QUERY_KEY_GAIN))
        tensors += feed_forward(at, sizes)
    keys = sizes.keys() | _WINDOW
    return Family(architecture="olmo2", keys=keys, tensors=tuple(tensors))


def exaone4() -> Family:
    """Three windowed layers to one full one without rotary positions. Only models of 64 layers have windows."""
    sizes = Sizes(n_layer=64, n_head=2, n_head_kv=1, n_ff=96)
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        # 128 parts add up
        tensors += norms(at, sizes, "post_attention_norm", "post_ffw_norm", mean=0.05)
        tensors += attention(at, sizes, head_norms=QUERY_KEY_GAIN)
        tensors += feed_forward(at, sizes)
    return Family(architecture="exaone4", keys=sizes.keys() | _WINDOW, tensors=tuple(tensors))


def llama4() -> Family:
    """Three layers that see a chunk of 8,192 tokens to one that sees everything, without rotary positions.

    llama.cpp has no key for the length of a chunk.
    """
    sizes, e = Sizes(n_layer=4), Experts(n_used=1)
    tensors = embeddings(sizes)
    for il in range(sizes.n_layer):
        at = f"blk.{il}."
        tensors += norms(at, sizes, "attn_norm", "ffn_norm")
        tensors += attention(at, sizes)
        if il % 2:
            tensors += experts(at, sizes, e)
            tensors += feed_forward(at, sizes, n_ff=e.n_ff, suffix="_shexp")
        else:
            tensors += feed_forward(at, sizes)
    keys = sizes.keys() | e.keys() | {"interleave_moe_layer_step": 2}
    return Family(architecture="llama4", keys=keys, tensors=tuple(tensors))
