"""GGUF files of tests, parsed once: gguf walks a vocabulary value by value, for longer than a tiny model loads."""

from __future__ import annotations

import functools
import os


def gguf_reader(path):
    """Return the gguf.GGUFReader of a file. It is the same one until the file is written again."""
    status = os.stat(path)
    return _reader(os.fspath(path), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=32)
def _reader(path, _mtime_ns, _size):
    from gguf import GGUFReader

    return GGUFReader(path)
