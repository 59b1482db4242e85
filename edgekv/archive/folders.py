"""The folder for archives: for temporary files, and on a disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs")
ON_DISK = "/var/tmp"  # temporary files that outlast a restart, so it is on a disk


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
