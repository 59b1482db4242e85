"""`python -m edgekv.testing.models.families NAME PATH`."""

from __future__ import annotations

import argparse

from ..model_spec import QUANTIZATIONS
from . import FAMILIES, SHAPES, make_family

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m edgekv.testing.models.families")
    parser.add_argument("name", choices=[*FAMILIES, *SHAPES])
    parser.add_argument("path")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, default="F32")
    arguments = parser.parse_args()
    print(make_family(arguments.path, arguments.name, quantization=arguments.quantization))
