"""A forward reader of little-endian numbers and strings that never reads past the end of its file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

from edgekv.errors import InvalidModelError

# The longest string that is held in memory. Chat templates are the longest that edgekv reads, of some 50 KiB.
MAX_STRING_BYTES = 1 << 20
STRINGS_BYTES = 1 << 16  # strings of an array that are held at a time

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Readable(Protocol):
    """A file that a stream can read."""

    def read(self, n_bytes: int, /) -> bytes: ...

    def seek(self, offset: int, whence: int, /) -> int: ...


class Stream:
    """Reads `file`, of `file_bytes` bytes, from its start.

    Every method takes `what`, which names the item in the error of a file that is too short, and raises
    InvalidModelError if the file ends within that item.
    """

    def __init__(self, file: Readable, file_bytes: int) -> None:
        self._file = file
        self.file_bytes = file_bytes
        self.position = 0

    def take(self, n_bytes: int, what: str) -> bytes:
        """Read the next `n_bytes` bytes."""
        self._claim(n_bytes, what)
        data = self._file.read(n_bytes)
        if len(data) != n_bytes:
            raise InvalidModelError(f"the file shrank below byte {self.position} while it was read; download it again")
        return data

    def skip(self, n_bytes: int, what: str) -> None:
        """Step over `n_bytes` bytes."""
        self._claim(n_bytes, what)
        self._file.seek(n_bytes, 1)

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def string(self, what: str, max_bytes: int) -> bytes:
        """Read a string of at most `max_bytes` bytes, which stands behind its length."""
        return self._string_of(self.u64(what), what, max_bytes)

    def strings(self, n: int, what: str) -> Iterator[list[bytes]]:
        """Yield the next n strings of at most MAX_STRING_BYTES bytes, some STRINGS_BYTES at a time.

        There may be half a million, so only the last one of each part takes calls of other methods.
        """
        read = self._file.read
        while n > 0:
            position, part = self.position, list[bytes]()
            end = min(self.file_bytes, position + STRINGS_BYTES)
            while n > 1 and position + 8 <= end:
                n_bytes = int.from_bytes(read(8), "little")
                n, position = n - 1, position + 8
                if position + n_bytes > end:
                    self.position = position
                    part.append(self._string_of(n_bytes, what, MAX_STRING_BYTES))
                    break
                part.append(read(n_bytes))
                position += n_bytes
            else:
                self.position, n = position, n - 1
                part.append(self.string(what, MAX_STRING_BYTES))
            yield part

    def _string_of(self, n_bytes: int, what: str, max_bytes: int) -> bytes:
        """Read a string after its length."""
        if n_bytes > max_bytes:
            raise InvalidModelError(
                f"{what} at byte {self.position} has {n_bytes} bytes, but at most {max_bytes} can be right; "
                "the file is damaged: download it again"
            )
        return self.take(n_bytes, what)

    def _claim(self, n_bytes: int, what: str) -> None:
        end = self.position + n_bytes
        if end > self.file_bytes:
            raise InvalidModelError(
                f"the file ends at byte {self.file_bytes}, but {what} at byte {self.position} "
                f"needs {n_bytes} bytes; download it again"
            )
        self.position = end
