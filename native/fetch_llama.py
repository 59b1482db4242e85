"""Fetch, check, unpack and patch llama.cpp's source; run by CMake while it configures.

    fetch_llama.py DEST [PATCH ...]

The source is the one inside the `llama-cpp-python` source package at the pinned version, fetched
by pip and checked against its sha256. DEST ends up complete or untouched: everything happens in a
folder beside it that is renamed last. A stamp names what DEST was made of, so a second run is free.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SOURCE = "vendor/llama.cpp"
PARTS = ("CMakeLists.txt", "LICENSE", "cmake/", "ggml/", "include/", "src/", "vendor/")
STAMP = ".edgekv-source"


class FetchError(RuntimeError):
    """The source could not be made ready; the message says what to do."""


def download(folder: Path) -> Path:
    """Fetch the source package into `folder` with pip; returns its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", "llama-cpp-python", "--dest", str(folder), PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True)
    archives = sorted(folder.glob("llama_cpp_python-*.tar.gz"))
    if result.returncode != 0 or len(archives) != 1:
        raise FetchError(f"pip could not download {PACKAGE}; is a package index in reach?\n{result.stderr.strip()}")
    return archives[0]


def check(archive: Path, sha256: str = SHA256) -> None:
    """Raise FetchError unless the archive is the pinned one, byte for byte."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise FetchError(f"{archive.name} has sha256 {found}, but {sha256} is pinned; the package was replaced")


def unpack(archive: Path, dest: Path) -> None:
    """Unpack the parts of llama.cpp that edgekv builds, without the package's top folder."""
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            if member.isfile() and path.startswith(tuple(f"{SOURCE}/{part}" for part in PARTS)):
                target = dest / path
                target.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                target.write_bytes(content.read())


def apply(patch: Path, dest: Path) -> None:
    """Apply one patch exactly (no fuzz) or raise FetchError."""
    import patch_ng

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # patch_ng prints its own account; ours is the error below
    try:
        patches = patch_ng.fromfile(str(patch))
        applies = bool(patches) and patches.apply(strip=1, root=str(dest / SOURCE), fuzz=False)
    finally:
        logging.disable(before)
    if not applies:
        raise FetchError(f"{patch.name} does not apply to {PACKAGE}; renew the patch for that version")


def fingerprint(patches: list[Path]) -> str:
    """Return the inputs of a prepared folder: the package, these patches, and this script."""
    digest = hashlib.sha256(SHA256.encode())
    for path in [Path(__file__), *patches]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def prepare(dest: Path, patches: list[Path]) -> None:
    stamp = fingerprint(patches)
    if (dest / STAMP).is_file() and (dest / STAMP).read_text() == stamp:
        return
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent) as scratch:
        archive = download(Path(scratch))
        check(archive)
        made = Path(scratch) / "made"
        unpack(archive, made)
        for patch in patches:
            apply(patch, made)
        (made / STAMP).write_text(stamp)
        shutil.rmtree(dest, ignore_errors=True)
        made.rename(dest)


if __name__ == "__main__":
    try:
        prepare(Path(sys.argv[1]), [Path(p) for p in sys.argv[2:]])
    except FetchError as error:
        sys.exit(f"edgekv: {error}")
