"""Temporary files that only this process sees, and that are gone when it ends, however it ends."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from io import FileIO
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.errors import SessionFileError

WINDOW = 4096  # newest numbers that lie in memory alone


def private_file(folder: str | None) -> FileIO:
    """An empty raw file in a folder (None = that of TMPDIR), which is gone once it is closed.

    Raises SessionFileError where the folder takes none.
    """
    try:
        file: Any = tempfile.TemporaryFile(prefix="edgekv-", dir=folder, buffering=0)  # noqa: SIM115  (the caller closes it)
    except OSError as error:
        raise SessionFileError(
            f"log={folder or True!r} takes no file: {error.strerror or error}; name a folder that can be written to"
        ) from error
    raw: FileIO = file
    return raw


class Numbers:
    """A list of int32 in a private file. It grows and is cut at its end; the newest WINDOW lie in memory."""

    def __init__(self, folder: str | None) -> None:
        """Raises SessionFileError where the folder takes no file."""
        self._file = private_file(folder)
        weakref.finalize(self, self._file.close)
        self._newest = np.empty(WINDOW, dtype=np.int32)
        self._n_written = 0
        self._n_newest = 0

    def __len__(self) -> int:
        return self._n_written + self._n_newest

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def make_room(self, n: int) -> None:
        """See to it that n more, at most WINDOW, can be appended. Raises SessionFileError where the disk is full."""
        if self._n_newest + n > WINDOW:
            rest = self._newest[: self._n_newest].view(np.uint8).data
            try:
                self._file.seek(4 * self._n_written)
                while rest:  # a raw file may take less than it is given
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                raise SessionFileError(
                    f"the log of the session cannot be written: {error.strerror or error}; make room on the disk, or "
                    "open a session with log=FOLDER in a folder that has some"
                ) from error
            self._n_written += self._n_newest
            self._n_newest = 0

    def append(self, numbers: npt.ArrayLike) -> None:
        """Add numbers that there is room for. It cannot fail."""
        added = np.asarray(numbers, dtype=np.int32)
        self._newest[self._n_newest : self._n_newest + len(added)] = added
        self._n_newest += len(added)

    def extend(self, numbers: npt.NDArray[np.int32]) -> None:
        """Add any number of them. Raises SessionFileError where the disk is full."""
        for first in range(0, len(numbers), WINDOW):
            piece = numbers[first : first + WINDOW]
            self.make_room(len(piece))
            self.append(piece)

    def pieces(self) -> Iterator[npt.NDArray[np.int32]]:
        """All of them, at most WINDOW at a time."""
        for first in range(0, len(self), WINDOW):
            yield self.read(first, first + WINDOW)

    def cut(self, n: int) -> None:
        """Keep the first n."""
        self._n_newest = max(0, min(self._n_newest, n - self._n_written))
        self._n_written = min(self._n_written, n)

    def read(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """A copy of those in [start, stop), (n,). Raises SessionFileError where the file cannot be read."""
        found = np.empty(max(0, min(stop, len(self)) - start), dtype=np.int32)
        n_filed = max(0, min(len(found), self._n_written - start))
        self._read_file(start, found[:n_filed])
        first = start + n_filed - self._n_written
        found[n_filed:] = self._newest[first : first + len(found) - n_filed]
        return found

    def _read_file(self, start: int, into: npt.NDArray[np.int32]) -> None:
        rest = into.view(np.uint8).data
        try:
            self._file.seek(4 * start)
            while rest:
                n_read = self._file.readinto(rest)
                if not n_read:
                    raise OSError("it was cut")
                rest = rest[n_read:]
        except OSError as error:
            raise SessionFileError(
                f"the log of the session cannot be read: {error.strerror or error}; open another session"
            ) from error
