"""Write a model in another quantisation, by llama.cpp's own function: a shape-true one as its users would have it.

python -m edgekv.testing.models.shapes qwen2.5-0.5b 0.5b-f16.gguf --quantization F16
python bench/quantized.py 0.5b-f16.gguf 0.5b-q4_k_m.gguf Q4_K_M
"""

from __future__ import annotations

import argparse
import ctypes as c
from pathlib import Path

from edgekv.binding.library import bindings

TYPES = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}  # enum llama_ftype


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path, help="in F16")
    parser.add_argument("path", type=Path)
    parser.add_argument("type", choices=TYPES)
    args = parser.parse_args()
    llama = bindings()
    params = llama.llama_model_quantize_default_params()
    params.ftype = TYPES[args.type]
    if llama.llama_model_quantize(str(args.source).encode(), str(args.path).encode(), c.byref(params)) != 0:
        parser.error(f"{args.source} cannot be quantised; what llama.cpp said stands above")
    print(f"{args.path}: {args.path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
