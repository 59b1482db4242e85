"""`python -m edgekv.models.families NAME PATH`."""

from __future__ import annotations

import argparse

from . import FAMILIES, make_family

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m edgekv.models.families")
    parser.add_argument("name", choices=FAMILIES)
    parser.add_argument("path")
    arguments = parser.parse_args()
    print(make_family(arguments.path, arguments.name))
