"""Many files within one temporary file, which has no name: together they take one descriptor."""

from __future__ import annotations

import heapq
import os
import weakref
from collections import deque

from .temp_array import temp_file

BLOCK_BYTES = 1 << 14


class BlockFile:
    """A temporary file in blocks of BLOCK_BYTES. Each of them belongs to a `Part`, or is free for the next one.

    One thread at a time works with it and its parts. But any thread may close a part at any time, in a finalizer too.

    close: removes it
    """

    def __init__(self, folder: str | None) -> None:
        """Raise OSError if the folder (None = that of TMPDIR) takes no file."""
        self.file = temp_file(folder)
        self.close = weakref.finalize(self, self.file.close)
        self._n_blocks = 0
        self._free: list[int] = []  # a heap
        self._returned: deque[int] = deque()  # free blocks that are not in the heap yet

    def part(self) -> Part:
        """Return a new, empty part."""
        return Part(self)

    def take(self) -> int:
        """Return the number of the first free block, which belongs to the caller then."""
        while self._returned:
            heapq.heappush(self._free, self._returned.popleft())
        if self._free:
            return heapq.heappop(self._free)
        self._n_blocks += 1
        return self._n_blocks - 1

    def give_back(self, blocks: list[int]) -> None:
        """Note that blocks are free."""
        self._returned.extend(blocks)


class Part:
    """A file within a `BlockFile`, with the methods of a raw file. Raises OSError as that does.

    It is written anywhere up to its end.
    """

    def __init__(self, whole: BlockFile) -> None:
        self._whole = whole
        self._blocks: list[int] = []
        self._size = self._position = 0

    def close(self) -> None:
        """Free its blocks."""
        blocks, self._blocks, self._size = self._blocks, [], 0
        self._whole.give_back(blocks)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a position, and return it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        self._position = start[whence] + offset
        return self._position

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, fewer at the end."""
        data = bytearray(max(0, min(size, self._size - self._position)))
        return bytes(data[: self.readinto(memoryview(data))])

    def readinto(self, into: memoryview, /) -> int:
        """Fill `into` with the next bytes; returns their number, which is less at the end."""
        wanted = min(len(into), self._size - self._position)
        n_read = 0
        while n_read < wanted:
            room = self._seek()
            n = self._whole.file.readinto(into[n_read : min(wanted, n_read + room)])
            if not n:  # the file was cut
                break
            n_read += n
            self._position += n
        return n_read

    def write(self, data: memoryview, /) -> int:
        """Write at the position the first of some bytes; returns their number."""
        if self._position == BLOCK_BYTES * len(self._blocks):
            self._blocks.append(self._whole.take())
        room = self._seek()
        n = self._whole.file.write(data[:room])
        self._position += n
        self._size = max(self._size, self._position)
        return n

    def _seek(self) -> int:
        """Go to the position in the whole file; returns the bytes from there to the end of the block."""
        number, at = divmod(self._position, BLOCK_BYTES)
        self._whole.file.seek(BLOCK_BYTES * self._blocks[number] + at)
        return BLOCK_BYTES - at
