"""Make models with the shape of real ones, random weights and a quantisation that llama.cpp makes, in the user's cache.

    python bench/quantized.py qwen2.5-0.5b Q4_K_M

prints the path of the file. 0.5B takes some 30 seconds, 1B two minutes, and while it is made twice its size in F16.
"""

from __future__ import annotations

import argparse
import ctypes as c
import os
import tempfile
from pathlib import Path

import platformdirs

from edgekv.binding.library import bindings
from edgekv.errors import NativeError
from edgekv.testing.models.shapes import SHAPES, make_shape

TYPES = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "Q5_K_M": 17}  # enum llama_ftype
TYPES |= {"F16": 1, "Q2_K": 10, "Q3_K_M": 12, "Q6_K": 18, "IQ3_S": 26, "IQ4_XS": 30, "BF16": 32}


def quantized_shape(name: str, quantization: str) -> Path:
    """Return the file of the shape `name` of SHAPES in a quantisation of TYPES; make it if the cache has none."""
    folder = Path(platformdirs.user_cache_dir("edgekv", appauthor=False)) / "shapes"
    path = folder / f"{name}-{quantization.lower()}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        source = make_shape(name, Path(unfinished, "f16.gguf"), quantization="F16")
        result = Path(unfinished, path.name)
        llama = bindings()
        params = llama.llama_model_quantize_default_params()
        params.ftype = TYPES[quantization]
        if llama.llama_model_quantize(str(source).encode(), str(result).encode(), c.byref(params)) != 0:
            raise NativeError(f"{source} cannot be quantised to {quantization}; EDGEKV_LOG=1 shows why")
        os.replace(result, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("type", choices=TYPES)
    args = parser.parse_args()
    print(quantized_shape(args.name, args.type))


if __name__ == "__main__":
    main()
