"""The share of a disk that archives take: a named number of bytes each, or a part of what is free."""

from __future__ import annotations

import shutil
import weakref

from .folders import disk_folder
from .session_archive import Archive

FREE_SHARE = 4  # an archive of no named size takes one part in so many of what is free


class ArchiveSpace:
    """Makes archives, and limits each.

    folder: None = `disk_folder`
    named_bytes: the most bytes of an archive; None = a quarter of what the disk has free when it makes its file, beside
        the bytes that other archives may still take
    """

    def __init__(self, folder: str | None, named_bytes: int | None) -> None:
        self._folder = folder
        self._named_bytes = named_bytes
        self._archives: weakref.WeakSet[Archive] = weakref.WeakSet()

    def new(self) -> Archive:
        """Return a new archive."""
        archive = Archive(self._folder, self.limit)
        self._archives.add(archive)
        return archive

    def limit(self, n_bytes: int = 0) -> int:
        """Return the most bytes of an archive that makes its file now. n_bytes: bytes that it has already"""
        if self._named_bytes is not None:
            return self._named_bytes
        return n_bytes + free_share(self._folder, sum(archive.free_bytes for archive in self._archives))


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
