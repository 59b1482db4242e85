"""The folder for archives: one of temporary files, on a disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs")
ON_DISK = "/var/tmp"  # temporary files that outlast a restart, so it is on a disk


def archive_folder(named: str | None) -> str:
    """Return the folder for archives: the one named, that of TMPDIR, or /var/tmp if that of TMPDIR lies in memory."""
    folder = named or tempfile.gettempdir()
    return ON_DISK if named is None and is_in_memory(Path(folder)) and os.access(ON_DISK, os.W_OK) else folder


def is_in_memory(folder: Path) -> bool:
    """Return True if a folder is known to lie on a file system in memory. Only Linux tells."""
    try:
        mounts = [line.split(" ")[1:3] for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return False
    whole = folder.resolve()
    kinds = {Path(place.encode().decode("unicode_escape")): kind for place, kind in mounts}  # the last one hides others
    place = next((place for place in (whole, *whole.parents) if place in kinds), None)
    return place is not None and kinds[place] in IN_MEMORY
