"""Models of random weights, of all families with different caches in llama.cpp.

    python -m edgekv.testing.models.families NAME PATH

writes one to PATH. They have the tensors and the metadata of real files. Those of FAMILIES are tiny; those of SHAPES
have the dimensions of a real model. They need the `gguf` package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from edgekv.errors import ConfigError

from ..vocabulary import make_vocabulary
from ..writer import write_tensors
from . import full_attention, hybrid, latent, windowed
from .family import Family, Sizes
from .sublayers import Experts

__all__ = ["FAMILIES", "SHAPES", "make_family"]

# Key: the name of the architecture, or of another kind of its files.
FAMILIES: Mapping[str, Callable[[], Family]] = {
    "lfm2": hybrid.lfm2,
    "lfm2-windows": lambda: hybrid.lfm2(window=192),
    "gemma3": windowed.gemma3,
    "granitehybrid": hybrid.granite_hybrid,
    "gemma2": windowed.gemma2,
    "mamba2": hybrid.mamba2_alone,
    "gpt-oss": windowed.gpt_oss,
    "falcon-h1": hybrid.falcon_h1,
    "qwen3next": hybrid.qwen3_next,
    "qwen35": hybrid.qwen35,
    "cohere2": windowed.cohere2,
    "olmo2": windowed.olmo2,
    "exaone4": windowed.exaone4,
    "llama4": windowed.llama4,
    "phi3": full_attention.phi3,
    "smollm3": full_attention.smollm3,
    "jamba": hybrid.jamba,
    "nemotron_h": hybrid.nemotron_h,
    "gemma3n": windowed.gemma3n,
    "gemma4": windowed.gemma4,
    "deepseek2": latent.deepseek2,
    "glm-4.7-flash": latent.glm47_flash,
    "deepseek2-decompressed": latent.deepseek2_decompressed,
    "minicpm3": latent.minicpm3,
    "glm4moe": full_attention.glm4_moe,
    "qwen2vl": full_attention.qwen2_vl,
    "qwen3vl": full_attention.qwen3_vl,
}


def _gpt_oss_20b(n_layer: int) -> Family:
    """Return its first layers, of 24, with a smaller vocabulary."""
    return windowed.gpt_oss(
        Sizes(
            n_layer=n_layer,
            n_embd=2_880,
            n_head=64,
            n_head_kv=8,
            n_ff=2_880,
            vocab_size=16_384,
            n_ctx_train=131_072,
            rope_base=150_000.0,
        ),
        Experts(n=32, n_used=4, n_ff=2_880),
        window=128,
    )


# Key: a name; dimensions are from the models' own config.json files.
SHAPES: Mapping[str, Callable[[], Family]] = {
    "lfm2-1.2b": lambda: hybrid.lfm2(
        Sizes(
            n_layer=16,
            n_embd=2_048,
            n_head=32,
            n_head_kv=8,
            n_ff=8_192,
            vocab_size=65_536,
            n_ctx_train=128_000,
            rope_base=1_000_000.0,
        ),
        attending=(2, 5, 8, 10, 12, 14),
    ),
    "gemma3-1b": lambda: windowed.gemma3(
        Sizes(
            n_layer=26,
            n_embd=1_152,
            n_head=4,
            n_head_kv=1,
            head_dim=256,
            n_ff=6_912,
            vocab_size=262_144,
            n_ctx_train=32_768,
            rope_base=1_000_000.0,
        ),
        window=512,
        rope_factor=1.0,
    ),
    "gpt-oss-20b": lambda: _gpt_oss_20b(n_layer=2),
    "gpt-oss-20b-half": lambda: _gpt_oss_20b(n_layer=12),
}


def make_family(path: str | os.PathLike[str], name: str, *, quantization: str = "F32", seed: int = 0) -> Path:
    """Write a model of FAMILIES or SHAPES to `path`; the same arguments give the same bytes.

    quantization  of the matrices: "F32", "F16", "Q8_0" or "Q4_0"

    Raises ConfigError for a name or a quantization that is unknown and if the `gguf` package is missing, and
    OSError if the file cannot be written.
    """
    known = {**FAMILIES, **SHAPES}
    if name not in known:
        raise ConfigError(f"family {name!r} is unknown; choose one of {tuple(known)}")
    family = known[name]()
    return write_tensors(
        path,
        family.architecture,
        family.add_keys,
        family.tensors,
        make_vocabulary(family.tokenizer, family.vocab_size),
        quantization=quantization,
        seed=seed,
    )
