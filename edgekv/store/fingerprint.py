"""Names of texts and models in results: the same name means the same file on every machine."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from edgekv.errors import InputError

DIGITS = 16  # hex digits of a SHA-256


def fingerprint(path: Path) -> str:
    """Return a file's name and the beginning of its digest. Raises InputError if it cannot be read."""
    try:
        stat = path.stat()
        return _fingerprint(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give the path of a file") from error


@functools.lru_cache
def _fingerprint(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while part := file.read(1 << 20):
            digest.update(part)
    return f"{path.name} {digest.hexdigest()[:DIGITS]}"
