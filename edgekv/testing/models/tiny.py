"""Tiny models of random weights. They take every path of a real model, in milliseconds."""

from __future__ import annotations

import os
from pathlib import Path

from .model_spec import ModelSpec, RopeScaling
from .vocabulary import make_vocabulary
from .writer import write_model


def make_tiny(
    path: str | os.PathLike[str],
    *,
    architecture: str = "llama",
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int | None = None,
    n_ff: int = 128,
    vocab_size: int = 512,
    n_ctx_train: int = 512,
    quantization: str = "F32",
    seed: int = 0,
    tokenizer: str = "bpe",
    rope_factors: tuple[float, ...] = (),
    rope_scaling: RopeScaling | None = None,
    layer_heads: tuple[tuple[int, int], ...] = (),
    layer_ff: tuple[int, ...] = (),
) -> Path:
    """Write a tiny model to `path`; the same arguments give the same bytes.

    architecture  "llama", "qwen2" (biases), "qwen3" (query and key norms), "gemma" or "deci" (layers that differ)
    head_dim      values a head; None means n_embd / n_head, and the file then does not name it
    quantization  of the matrices: "F32", "F16", "Q8_0" or "Q4_0"
    tokenizer     "bpe", "code" (tokens that fill gaps, too) or "spm"
    rope_factors  and rope_scaling, layer_heads and layer_ff, as of ModelSpec

    `n_embd`, `n_ff` and n_head * head_dim must be multiples of 32, and for qwen2 n_head * head_dim must be `n_embd`.
    Raises ConfigError for arguments that cannot work and if the `gguf` package is missing, and OSError if
    the file cannot be written.
    """
    spec = ModelSpec(
        name=f"tiny {architecture}",
        architecture=architecture,
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_ff=n_ff,
        vocab_size=vocab_size,
        n_ctx_train=n_ctx_train,
        rope_factors=rope_factors,
        rope_scaling=rope_scaling,
        layer_heads=layer_heads,
        layer_ff=layer_ff,
        tied=architecture == "gemma",
    )
    return write_model(path, spec, make_vocabulary(tokenizer, vocab_size), quantization=quantization, seed=seed)
