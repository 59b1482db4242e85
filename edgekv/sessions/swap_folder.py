"""Swap files of sessions: private, temporary, and removed by the next runtime if their process was killed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from edgekv.errors import ConfigError
from edgekv.memory.pages import new_pages
from edgekv.memory.raw_files import read_all, write_all
from edgekv.store.locks import lock, new_locked

PREFIX = "edgekv-swap-"
LOCK = ".lock"  # ending of a file beside a folder, locked as long as the folder's process lives


@dataclass(frozen=True, slots=True)
class SwapFile:
    """Arrays on the disk, one after another. sizes: their bytes"""

    path: Path
    sizes: tuple[int, ...]
    checksum: int


class SwapFolder:
    """A folder of its own within `parent`, which is made if it does not exist. Close it.

    parent: the folder that was given
    folder: its own folder, removed by `close`

    Removes folders of processes that were killed. Raises ConfigError if it cannot be written to.
    """

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_orphans(parent)
            self._lock = new_locked(lambda: _lock_file(parent))
            self.folder = Path(self._lock.name.removesuffix(LOCK))
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"swap_dir={str(parent)!r} cannot be used: {error.strerror or error}; name a folder that can be "
                "written to"
            ) from error
        self._n_files = 0
        self.close = weakref.finalize(self, _close, self.folder, self._lock, os.getpid())  # at exit, too

    def write(self, *arrays: memoryview) -> SwapFile:
        """Write arrays to a new file. Raises OSError, and leaves nothing."""
        self._n_files += 1
        path = self.folder / str(self._n_files)
        checksum = 0
        try:
            with open(path, "xb", buffering=0, opener=_private) as file:
                for array in arrays:
                    checksum = zlib.crc32(array, checksum)
                    write_all(file, array)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        return SwapFile(path, tuple(array.nbytes for array in arrays), checksum)

    def read(self, file: SwapFile) -> list[npt.NDArray[np.uint8]]:
        """Read the arrays of a file. Raises OSError, and ValueError if the file was changed."""
        arrays, checksum = [], 0
        with open(file.path, "rb", buffering=0) as opened:
            for n_bytes in file.sizes:
                array = new_pages(n_bytes)
                read_all(opened, array.data)  # the checksum detects a truncated file
                checksum = zlib.crc32(array.data, checksum)
                arrays.append(array)
        if checksum != file.checksum:
            raise ValueError("its file was changed")
        return arrays

    def remove(self, file: SwapFile) -> None:
        """Remove a file."""
        with suppress(OSError):
            file.path.unlink()


def remove_orphans(parent: Path) -> None:
    """Remove the files that killed processes left in a folder."""
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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
