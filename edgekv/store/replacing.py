"""Files that replace others whole: whoever opens one, whenever a writer dies, finds the old or the new one."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from edgekv.errors import SessionFileError

try:
    import fcntl
except ImportError:  # Windows, where nobody can remove a file that is open
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".edgekv-part"  # of a file that is not whole yet


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` after the block: flushed, and readable by its owner alone.

    If the block fails, `path` stays as it was. A process that is killed leaves its file behind; the next one that
    replaces `path` removes it. Raises OSError, and SessionFileError where `path` is something else than a file.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "no plain file"
        raise SessionFileError(f"{str(path)!r} is {what}; give the path of a file")
    remove_leftovers(path.parent, path.name)
    file, part = _made(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    _flush_folder(path.parent)


def remove_leftovers(folder: Path, name: str | None = None) -> int:
    """Remove what killed writers left in a folder; returns how many.

    name: of the file that they were to replace; None = any. A file that is still written is locked, and stays.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        parts = [entry.path for entry in entries if entry.name.endswith(SUFFIX)]
        if name is not None:
            parts = [part for part in parts if os.path.basename(part).startswith(_prefix(name))]
        return sum(map(_removed, parts))
    return 0


def _prefix(name: str) -> str:
    """The beginning of the names of files that are to replace this one; short, however long its name is."""
    return f".{hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()}-"


def _made(path: Path) -> tuple[BinaryIO, Path]:
    """A new file beside `path`, locked."""
    while True:
        part = path.parent / f"{_prefix(path.name)}{secrets.token_hex(4)}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        file = open(os.open(part, flags, 0o600), "wb")  # noqa: SIM115  (the caller closes it)
        # Another process may have seen it before it was locked, and taken it for a leftover.
        if _locked(file.fileno()) and os.path.exists(part):
            return file, part
        file.close()


def _locked(descriptor: int) -> bool:
    """Lock a file; False = another process has done so."""
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
    return True


def _removed(part: str) -> bool:
    """Remove a file that nobody has locked."""
    try:
        if fcntl is None:
            os.unlink(part)
            return True
        descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
