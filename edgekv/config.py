"""`python -m edgekv.config`: where a C or C++ program finds this installation (docs/c.md)."""

from __future__ import annotations

import argparse
from pathlib import Path

from .binding.library import library_path

FOLDERS = {"include": "include", "lib": ".", "cmake": "cmake", "pkg-config": "pkgconfig"}  # beside the library


def folder(kind: str) -> Path:
    """Return a folder of FOLDERS, as an absolute path. Raises NativeError if there is no library."""
    return library_path().parent / FOLDERS[kind]


def main() -> None:
    """Print the folders that are asked for, one a line."""
    parser = argparse.ArgumentParser(prog="python -m edgekv.config", description="Where C programs find edgekv.")
    for kind in FOLDERS:
        parser.add_argument(f"--{kind}-dir", dest="kinds", action="append_const", const=kind, help=f"the {kind} folder")
    kinds = parser.parse_args().kinds
    if not kinds:
        parser.error("name a folder: " + ", ".join(f"--{kind}-dir" for kind in FOLDERS))
    for kind in kinds:
        print(folder(kind))


if __name__ == "__main__":
    main()
