"""The files that a process holds open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

LISTS_FILES = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc/self/fd")


def spoil(file):
    """Change the last byte of a file that is open."""
    at = file.seek(-1, os.SEEK_END)
    (byte,) = file.read(1)
    file.seek(at)
    file.write(memoryview(bytes([byte ^ 1])))


def n_open(folder, pid="self"):
    """Count the files of a folder that a process holds open, removed ones included."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread closed it since
            count += os.readlink(link).startswith(str(folder))
    return count
