"""Models with the shape of real ones and random weights, to measure memory and time without a download.

    python -m edgekv.testing.models.shapes NAME PATH [--quantization Q] [--n-layer N]

writes one to PATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from pathlib import Path

from edgekv.errors import ConfigError

from .model_spec import QUANTIZATIONS, ModelSpec
from .vocabulary import make_vocabulary
from .writer import write_model


def llama3_rope_factors(
    head_dim: int, base: float, *, factor: float, low: float, high: float, n_ctx_original: int
) -> tuple[float, ...]:
    """Return Llama 3's divisors of its head_dim / 2 rotary frequencies, for positions beyond `n_ctx_original`.

    A frequency with over `high` turns in the original context keeps its speed, one with under `low` turns
    is slowed by `factor`, and between them the frequency is interpolated linearly in the turns:

        1 / divisor = (1 - s) / factor + s      with s = (turns - low) / (high - low), clipped to [0, 1]
    """

    def divisor(pair: int) -> float:
        turns = n_ctx_original / (2 * math.pi * math.pow(base, 2 * pair / head_dim))
        s = min(max((turns - low) / (high - low), 0.0), 1.0)
        return 1 / ((1 - s) / factor + s)

    return tuple(divisor(pair) for pair in range(head_dim // 2))


# Dimensions of the models' own config.json files.
_SPECS = (
    ModelSpec(
        name="smollm2-135m",
        architecture="llama",
        n_layer=30,
        n_embd=576,
        n_head=9,
        n_head_kv=3,
        n_ff=1_536,
        vocab_size=49_152,
        n_ctx_train=8_192,
        rope_base=100_000.0,
        tied=True,
    ),
    ModelSpec(
        name="llama-3.2-1b",
        architecture="llama",
        n_layer=16,
        n_embd=2_048,
        n_head=32,
        n_head_kv=8,
        head_dim=64,
        n_ff=8_192,
        vocab_size=128_256,
        n_ctx_train=131_072,
        rope_base=500_000.0,
        rope_factors=llama3_rope_factors(64, 500_000.0, factor=32.0, low=1.0, high=4.0, n_ctx_original=8_192),
        tied=True,
    ),
    ModelSpec(
        name="qwen2.5-0.5b",
        architecture="qwen2",
        n_layer=24,
        n_embd=896,
        n_head=14,
        n_head_kv=2,
        n_ff=4_864,
        vocab_size=151_936,
        n_ctx_train=32_768,
        rope_base=1_000_000.0,
        norm_epsilon=1e-6,
        tied=True,
    ),
)

SHAPES = {spec.name: spec for spec in _SPECS}


def make_shape(
    name: str, path: str | os.PathLike[str], *, quantization: str = "Q4_0", n_layer: int | None = None
) -> Path:
    """Write a model of random weights to `path`, with the dimensions of the model `name` of SHAPES.

    All matrices take `quantization`, the embedding too; the vocabulary has the real size, but made-up words.
    `n_layer` overrides the number of layers. Takes a few seconds and some 200 MiB of memory.
    Raises ConfigError for an unknown name and as `make_tiny` does.
    """
    spec = SHAPES.get(name)
    if spec is None:
        raise ConfigError(f"shape {name!r} is unknown; choose one of {tuple(SHAPES)}")
    if n_layer is not None:
        spec = dataclasses.replace(spec, n_layer=n_layer)
    return write_model(path, spec, make_vocabulary("bpe", spec.vocab_size), quantization=quantization, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m edgekv.testing.models.shapes", description="Write a shape-true model."
    )
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--quantization", choices=QUANTIZATIONS, default="Q4_0")
    parser.add_argument("--n-layer", type=int)
    arguments = parser.parse_args()
    path = make_shape(arguments.name, arguments.path, quantization=arguments.quantization, n_layer=arguments.n_layer)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
