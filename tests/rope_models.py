"""Tiny models whose keys RoPE turns otherwise than llama's: in part, in some layers, not last, not at all."""

from __future__ import annotations

from unsupported_models import (
    ATTENTION_KEYS,
    FEED_FORWARD,
    HEAD_DIM,
    N_CTX_TRAIN,
    N_EMBD,
    N_FF,
    OUTPUT_NORM,
    TRANSFORMER,
    VOCAB_SIZE,
    Architecture,
    norms,
)

N_LAYER = 4
N_ROT = 16  # turned elements of stablelm's heads of HEAD_DIM

KEYS = ATTENTION_KEYS | {"block_count": N_LAYER}
QKV_AND_FEED_FORWARD = {
    "attn_qkv.weight": (3 * N_EMBD, N_EMBD),
    "attn_qkv.bias": (3 * N_EMBD,),
    "attn_output.weight": (N_EMBD, N_EMBD),
    "attn_output.bias": (N_EMBD,),
    "ffn_up.weight": (N_FF, N_EMBD),
    "ffn_up.bias": (N_FF,),
    "ffn_down.weight": (N_EMBD, N_FF),
    "ffn_down.bias": (N_EMBD,),
}

ROPE_MODELS = {
    # every fourth layer has no RoPE
    "smollm3": Architecture(KEYS, N_LAYER * (TRANSFORMER,), OUTPUT_NORM),
    # the first N_ROT elements of a head turn
    "stablelm": Architecture(
        KEYS | {"rope.dimension_count": N_ROT, "use_parallel_residual": False},
        N_LAYER * (TRANSFORMER | norms("attn_norm", "ffn_norm", biases=True),),
        norms("output_norm", biases=True) | {"output.weight": (VOCAB_SIZE, N_EMBD)},
    ),
    # keys are normalised, and weighted, once they are turned
    "maincoder": Architecture(
        KEYS,
        N_LAYER * (TRANSFORMER | {f"attn_{name}_norm.weight": (HEAD_DIM,) for name in "qk"} | FEED_FORWARD,),
        OUTPUT_NORM,
    ),
    # a learned vector for every position
    "gpt2": Architecture(
        KEYS,
        N_LAYER * (norms("attn_norm", "ffn_norm", biases=True) | QKV_AND_FEED_FORWARD,),
        norms("output_norm", biases=True) | {"position_embd.weight": (N_CTX_TRAIN, N_EMBD)},
    ),
}
