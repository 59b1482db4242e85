"""Private folders for temporary files with names. The next process removes those of processes that were killed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .shared_files import lock, new_locked

PREFIX = "edgekv-kept-"
LOCK = ".lock"  # ending of a file beside a folder, locked as long as the folder's process lives


class TempFolder:
    """A new folder within `parent`, which only this user can read. It is removed by `close`, or at exit.

    Removes folders of processes that were killed. Raises OSError if `parent` cannot be written to.
    """

    def __init__(self, parent: Path) -> None:
        remove_orphans(parent)
        locked = new_locked(lambda: _lock_file(parent))
        self.path = Path(locked.name.removesuffix(LOCK))
        self.close = weakref.finalize(self, _close, self.path, locked, os.getpid())
        self.path.mkdir(mode=0o700)


def remove_orphans(parent: Path) -> None:
    """Remove the folders that killed processes left."""
    for name in parent.glob(f"{PREFIX}*{LOCK}"):
        with suppress(OSError), open(name, "r+b") as file:
            if lock(file.fileno()):  # the lock fails while the process lives
                _remove(Path(str(name).removesuffix(LOCK)), file)


def _lock_file(parent: Path) -> BinaryIO:
    descriptor, name = tempfile.mkstemp(LOCK, PREFIX, parent)
    return open(name, "r+b", opener=lambda *_: descriptor)


def _close(folder: Path, locked: BinaryIO, pid: int) -> None:
    if os.getpid() == pid:  # a fork must not remove the folder
        _remove(folder, locked)


def _remove(folder: Path, locked: BinaryIO) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.unlink(locked.name)
    locked.close()
    if sys.platform == "win32":  # Windows removes no open file
        with suppress(OSError):
            os.unlink(locked.name)
