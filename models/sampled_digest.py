"""A digest that tells model files apart in milliseconds, whatever their size, names and folders."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from .header import unreadable

__all__ = ["sampled_digest"]

N_SAMPLES = 64
SAMPLE_BYTES = 1 << 16


def sampled_digest(path: Path) -> str:
    """Return a digest of a file's size and of 64 samples of 64 KiB, spread evenly from its first byte to its last.

    The first sample has the dimensions of a GGUF model, and the others have weights of all layers, so the digest tells
    models apart that differ in their training or quantisation. A file of at most 4 MiB is read whole. A change between
    two samples of a larger file is not seen. Raises InvalidModelError if the file cannot be read.
    """
    try:
        status = path.stat()
        return _digest(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise unreadable(path, error) from error


@functools.lru_cache
def _digest(path: Path, n_bytes: int, _changed: int) -> str:
    digest = hashlib.blake2b(str(n_bytes).encode(), digest_size=16)
    last = max(0, n_bytes - SAMPLE_BYTES)
    if n_bytes <= N_SAMPLES * SAMPLE_BYTES:
        starts = list(range(0, n_bytes, SAMPLE_BYTES))
    else:
        starts = [i * last // (N_SAMPLES - 1) for i in range(N_SAMPLES)]
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
