"""The folder that archives lie in, and their share of its disk: named bytes each, or a part of what is free."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Protocol

IN_MEMORY = ("tmpfs", "ramfs")
ON_DISK = "/var/tmp"  # temporary files that outlast a restart, so it is on a disk
FREE_SHARE = 4  # an archive of no named size takes one part in so many of what is free


class Growing(Protocol):
    """A file that may still grow."""

    @property
    def free_bytes(self) -> int:
        """Bytes that it may still grow by."""


class ArchiveSpace:
    """The limit of each archive in a folder.

    folder: None = `disk_folder`
    archives: those that take a part of what is free
    named_bytes: the most bytes of an archive; None = a quarter of what the disk has free when it makes its file, beside
        the bytes that other archives may still take
    """

    def __init__(self, folder: str | None, named_bytes: int | None) -> None:
        self.folder = folder
        self._named_bytes = named_bytes
        self.archives: weakref.WeakSet[Growing] = weakref.WeakSet()

    def limit(self, n_bytes: int = 0) -> int:
        """Return the most bytes of an archive that makes its file now. n_bytes: bytes that it has already"""
        if self._named_bytes is not None:
            return self._named_bytes
        return n_bytes + free_share(self.folder, sum(archive.free_bytes for archive in self.archives))


def free_share(folder: str | None, promised: int = 0) -> int:
    """Return the bytes that an archive of no named size may take in a folder; None = `disk_folder`.

    promised: bytes that other archives may still take there
    """
    place = folder or disk_folder()
    try:
        free = 0 if place is None else shutil.disk_usage(place).free
    except OSError:  # there is no such folder yet
        free = 0
    return max(0, free - promised) // FREE_SHARE


def disk_folder() -> str | None:
    """Return the folder of temporary files that lies on a disk: that of TMPDIR, or /var/tmp; None = neither does."""
    try:
        folders = (tempfile.gettempdir(), ON_DISK)
    except OSError:  # no folder takes a file
        return None
    return next((it for it in folders if os.access(it, os.W_OK) and not is_in_memory(Path(it))), None)


def is_in_memory(folder: Path) -> bool:
    """Return True if a folder is known to lie on a file system in memory. Only Linux tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8").splitlines()
    except OSError:
        return False
    whole = f"{folder.resolve()}/"
    deepest = found = ""
    for line in mounts:  # the last one at a place hides others
        _, place, kind, *_ = line.split(" ")
        if "\\" in place:
            place = place.encode().decode("unicode_escape")
        if len(place) >= len(deepest) and whole.startswith(f"{place.rstrip('/')}/"):
            deepest, found = place, kind
    return found in IN_MEMORY
