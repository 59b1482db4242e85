"""Tell files that may be replaced: they did not change since this process last read or wrote them."""

from __future__ import annotations

import os
from pathlib import Path

Identity = tuple[int, int, int, int]


class Ownership:
    """Remembers files as they were. A file that is new or has changed belongs to another program."""

    def __init__(self) -> None:
        self._seen: dict[str, Identity | None] = {}

    def note(self, path: Path) -> None:
        """Own a file as it is now, after it was written or before it is read."""
        self._seen[os.path.realpath(path)] = _identity(path)

    def is_foreign(self, path: Path) -> bool:
        """Return True if there is a file, and it is not the noted one."""
        there = _identity(path)
        return there is not None and there != self._seen.get(os.path.realpath(path))


def _identity(path: Path) -> Identity | None:
    """Return a file's device, inode, mtime and size; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
