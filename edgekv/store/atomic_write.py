"""Files that replace others at once: a reader finds the old file or the new one, even if the writer is killed."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from edgekv.errors import SessionFileError

from .shared_files import AGAIN_S, lock, new_locked, opener

SUFFIX = ".edgekv-part"  # suffix of a file that is not complete yet
OPEN_S = 5.0  # seconds to wait for a process that has the old file open, on systems that cannot replace an open file


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` after the block: flushed, and readable by its owner alone.

    If the block fails, `path` stays as it was. A process that is killed leaves its file behind; the next one that
    replaces `path` removes it. Raises OSError, and SessionFileError if `path` is no file.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "no plain file"
        raise SessionFileError(f"{str(path)!r} is {what}; give the path of a file")
    remove_leftovers(path.parent, path.name)
    file = new_locked(lambda: _part(path))
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            _replace(file.name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(file.name)
        raise
    _flush_folder(path.parent)


def remove_leftovers(folder: Path, name: str | None = None) -> int:
    """Remove the files that killed writers left in a folder; returns their number.

    name: name of the file that they should have replaced; None = any

    A file that is still being written is locked, and stays.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        parts = [entry.path for entry in entries if entry.name.endswith(SUFFIX)]
        if name is not None:
            parts = [part for part in parts if os.path.basename(part).startswith(_prefix(name))]
        return sum(map(_removed, parts))
    return 0


def _prefix(name: str) -> str:
    """Return the prefix of the files that are to replace this one; it is short for any name."""
    return f".{hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()}-"


def _part(path: Path) -> BinaryIO:
    """Make a new file beside `path`, which only its owner can read."""
    part = path.parent / f"{_prefix(path.name)}{secrets.token_hex(4)}{SUFFIX}"
    return open(part, "xb", opener=opener)


def _replace(part: str, path: Path) -> None:
    """Give a file the name of another. Windows replaces no file that somebody has open."""
    deadline = time.monotonic() + (OPEN_S if sys.platform == "win32" else 0.0)
    while True:
        try:
            os.replace(part, path)
            return
        except PermissionError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_S)


def _removed(part: str) -> bool:
    """Remove a file that nobody writes; returns False if it is still being written or cannot be removed."""
    try:
        descriptor = opener(part, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            if not lock(descriptor):
                return False
            if sys.platform == "win32":  # a removed file keeps its name there until everyone has closed it
                gone = os.path.join(os.path.dirname(part), f".{secrets.token_hex(8)}{SUFFIX}")
                os.rename(part, gone)
                part = gone
            os.unlink(part)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def _flush_folder(folder: Path) -> None:
    """Make a new name survive a loss of power, on systems that can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
