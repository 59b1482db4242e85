"""Temporary files that only this process sees, and arrays in them. They are gone when the process ends."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Iterator
from io import FileIO
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.errors import SessionError, SessionFileError
from edgekv.memory.raw_files import read_all, write_all

WINDOW = 4096  # newest numbers, which lie in memory alone


def temp_file(folder: str | None) -> FileIO:
    """Open an empty raw file in a folder (None = that of TMPDIR), which is gone once it is closed. Raises OSError.

    Only this user can read it.
    """
    file: Any = tempfile.TemporaryFile(prefix="edgekv-", dir=folder, buffering=0)  # noqa: SIM115  (the caller closes it)
    raw: FileIO = file
    return raw


class TempArray:
    """An array of int32 in a temporary file. It grows and is cut at its end; the newest WINDOW lie in memory.

    Any thread may read it while another one changes or closes it.
    """

    def __init__(self, folder: str | None) -> None:
        """Raise SessionFileError if the folder takes no file."""
        try:
            self._file = temp_file(folder)
        except OSError as error:
            raise SessionFileError(
                f"history={folder or True!r} takes no file: {error.strerror or error}; "
                "name a folder that can be written to"
            ) from error
        weakref.finalize(self, self._file.close)
        self._lock = threading.RLock()  # an interrupt may close the array within any call
        self._newest = np.empty(WINDOW, dtype=np.int32)
        self._sizes = 0, 0  # numbers in the file, and in memory; assigned together, so an interrupt parts none

    def __len__(self) -> int:
        return sum(self._sizes)

    def close(self) -> None:
        """Remove the file."""
        with self._lock:
            self._file.close()

    def make_room(self, n: int) -> None:
        """Make room for n more numbers, at most WINDOW. Raises SessionFileError if the disk is full."""
        with self._lock:
            n_written, n_newest = self._sizes
            if n_newest + n > WINDOW:
                try:
                    self._file.seek(4 * n_written)
                    write_all(self._file, self._newest[:n_newest].view(np.uint8).data)
                except OSError as error:
                    raise SessionFileError(
                        f"the log of the session cannot be written: {error.strerror or error}; make room on the disk, "
                        "or open a session with history=FOLDER in a folder that has some"
                    ) from error
                self._sizes = n_written + n_newest, 0

    def append(self, numbers: npt.ArrayLike) -> None:
        """Append numbers after `make_room`. This cannot fail."""
        added = np.asarray(numbers, dtype=np.int32)
        with self._lock:
            n_written, n_newest = self._sizes
            self._newest[n_newest : n_newest + len(added)] = added
            self._sizes = n_written, n_newest + len(added)

    def extend(self, numbers: npt.NDArray[np.int32]) -> None:
        """Append any amount of numbers. Raises SessionFileError if the disk is full."""
        for first in range(0, len(numbers), WINDOW):
            piece = numbers[first : first + WINDOW]
            self.make_room(len(piece))
            self.append(piece)

    def pieces(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yield all numbers, at most WINDOW at a time."""
        for first in range(0, len(self), WINDOW):
            yield self.read(first, first + WINDOW)

    def cut(self, n: int) -> None:
        """Keep the first n numbers."""
        with self._lock:
            n_written, n_newest = self._sizes
            self._sizes = min(n_written, n), max(0, min(n_newest, n - n_written))

    def read(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return a copy of the numbers in [start, stop), (n,).

        Raises SessionFileError if the file cannot be read, and SessionError if it is closed.
        """
        with self._lock:
            found = np.empty(max(0, min(stop, len(self)) - start), dtype=np.int32)
            n_written, _ = self._sizes
            n_filed = max(0, min(len(found), n_written - start))
            self._read_file(start, found[:n_filed])
            first = start + n_filed - n_written
            found[n_filed:] = self._newest[first : first + len(found) - n_filed]
        return found

    def _read_file(self, start: int, into: npt.NDArray[np.int32]) -> None:
        try:
            self._file.seek(4 * start)
            if not read_all(self._file, into.view(np.uint8).data):
                raise OSError("it was cut")
        except OSError as error:
            raise SessionFileError(
                f"the log of the session cannot be read: {error.strerror or error}; open another session"
            ) from error
        except ValueError as error:  # another thread has closed the file
            raise SessionError("this session is closed; open another with Runtime.session()") from error
