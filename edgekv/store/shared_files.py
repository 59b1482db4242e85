"""Files that other processes use, too: opened so that these may rename, replace and remove them, and locked.

A lock ends with its process, so it tells if a file is in use.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PATIENCE_S = 60.0  # seconds to wait for a lock
AGAIN_S = 0.02

if sys.platform == "win32":
    import _winapi
    import msvcrt

    _SHARED = 0x7  # FILE_SHARE_READ, FILE_SHARE_WRITE and FILE_SHARE_DELETE: Windows has to be asked for them
    _CREATE_NEW = 1
    _UNREAD = 1 << 40  # a byte that no file has: others cannot read one that is locked

    def opener(name: str, flags: int) -> int:
        """Open a file, for `open`, that exists or that only its owner can read."""
        access = _winapi.GENERIC_READ
        if flags & (os.O_WRONLY | os.O_RDWR):
            access |= _winapi.GENERIC_WRITE
        how = _CREATE_NEW if flags & os.O_EXCL else _winapi.OPEN_EXISTING
        return msvcrt.open_osfhandle(_winapi.CreateFile(os.fspath(name), access, _SHARED, 0, how, 0, 0), flags)

    def lock(file: int, *, shared: bool = False) -> bool:
        """Lock an open file until it is closed. Raises BlockingIOError if another process has it locked.

        shared: has no effect here, because these locks are not shared
        """
        before = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, _UNREAD, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(error.errno, error.strerror) from error
        finally:
            os.lseek(file, before, os.SEEK_SET)
        return True

else:
    import fcntl

    def opener(name: str, flags: int) -> int:
        """Open a file, for `open`, that exists or that only its owner can read."""
        return os.open(name, flags, 0o600)

    def lock(file: int, *, shared: bool = False) -> bool:
        """Lock an open file until it is closed; False = its file system has no locks.

        shared: others may have a shared lock, too. Raises BlockingIOError if another process has it locked.
        """
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return False
        return True


def new_locked(make: Callable[[], BinaryIO]) -> BinaryIO:
    """Make a new file that stays locked until it is closed. make: opens a file under a name that nobody has"""
    while True:
        file = make()
        # Another process may have seen the file before it was locked, and removed it as unused.
        with suppress(BlockingIOError):
            lock(file.fileno())
            if os.path.exists(file.name):
                return file
        file.close()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if needed, during the block. Others wait for it, for PATIENCE_S at most.

    Raises OSError if the file cannot be made, and BlockingIOError if another process keeps the lock.
    """
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                lock(file.fileno())
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN_S)
        yield
