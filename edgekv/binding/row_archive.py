"""An archive of a cache's rows, from Python: append, cut, and recall from it."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import library, structs
from .cache import Cache
from .held_cells import HeadPositions

SEGMENT_TOKENS = 128  # EDGEKV_SEGMENT_TOKENS


def segments_of(begin: int, end: int) -> int:
    """Return the number of segments that the positions [begin, end) lie in."""
    return (end - 1) // SEGMENT_TOKENS - begin // SEGMENT_TOKENS + 1 if end > begin else 0


class RowArchive:
    """The rows of the tokens at positions [begin, end) of a text, in a file. Close it before the file.

    cache: any cache of the model; each call names the cache that has the text now

    fd: descriptor of a file that is open for reading and writing
    begin: position of the first token that will be archived
    limit_bytes: the file never grows beyond it

    Raises ConfigError for a position that was not fed and is not the next one.
    """

    def __init__(self, cache: Cache, fd: int, begin: int, limit_bytes: int) -> None:
        self._begin_with("edgekv_archive_open", cache.handle, fd, begin, limit_bytes)

    def _begin_with(self, name: str, *arguments: object) -> None:
        self._library = library.load()
        self._handle = c.c_void_p()
        self._work = c.c_void_p()  # the recall that `begin_recall` began
        self.needed: HeadPositions | None = None  # what heads held and need, by the last whole recall
        library.call(name, *arguments, c.byref(self._handle))

    @property
    def handle(self) -> c.c_void_p:
        """The archive, for calls of the library."""
        return self._handle

    @classmethod
    def read(cls, cache: Cache, fd: int, offset: int, begin: int, end: int) -> RowArchive:
        """Return an archive of the positions [begin, end) that another one has left in a file, from byte `offset` on.

        Nothing can be appended before a branch. Raises ConfigError for positions that were not fed.
        """
        archive = cls.__new__(cls)
        archive._begin_with("edgekv_archive_read", cache.handle, fd, offset, begin, end)
        return archive

    def copy(self) -> RowArchive:
        """Return an archive of the same positions in the same files. Nothing can be appended to it before a branch.

        This one must branch before it is cut below them and written on.
        """
        archive = RowArchive.__new__(RowArchive)
        archive._begin_with("edgekv_archive_copy", self._handle)
        return archive

    def branch(self, cache: Cache, end: int, fd: int, limit_bytes: int) -> None:
        """Keep the positions before `end`, as far as the limit has room, and write later ones to another, empty file.

        The files of before are only read from now on. If tokens after `end` have no cells any more, nothing is written
        until a cut. Raises ArchiveError if a part of one segment cannot be copied; then nothing has changed.
        """
        library.call("edgekv_archive_branch", self._handle, cache.handle, end, fd, limit_bytes)

    def resume(self, fd: int, offset: int, first: int, end: int, limit_bytes: int) -> None:
        """Go on with the positions [first, end) that an archive has left in a file, from byte `offset` on; write there.

        What lies before `first` stays. So a new archive takes up all files of a conversation, one after another, before
        any token is fed. Raises ConfigError if it ends before `first`, or if no segment begins there.
        """
        library.call("edgekv_archive_resume", self._handle, fd, offset, first, end, limit_bytes)

    def close(self) -> None:
        """Free the bookkeeping."""
        self._free_work()
        if self._handle:
            self._library.edgekv_archive_free(self._handle)
            self._handle = c.c_void_p()

    @property
    def begin(self) -> int:
        """Position of the first token."""
        return int(self._library.edgekv_archive_begin(self._handle))

    @property
    def end(self) -> int:
        """Position after the last token."""
        return int(self._library.edgekv_archive_end(self._handle))

    @property
    def n_taken(self) -> int:
        """Tokens whose rows were taken and are not written."""
        return int(self._library.edgekv_archive_n_taken(self._handle))

    @property
    def written_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._library.edgekv_archive_written_bytes(self._handle))

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment."""
        return int(self._library.edgekv_archive_segment_size(self._handle))

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the descriptor of the file that each segment lies in, and its first byte there."""
        for i in range(segments_of(self.begin, self.end)):
            position = (self.begin // SEGMENT_TOKENS + i) * SEGMENT_TOKENS
            fd, offset = c.c_int32(), c.c_uint64()
            self._library.edgekv_archive_place(self._handle, position, c.byref(fd), c.byref(offset))
            yield fd.value, offset.value

    def append(self, cache: Cache) -> None:
        """Write the rows of all tokens that the cache was fed since the last call, as far as there is room.

        Raises ArchiveError if the file cannot be written, and NativeError if some of them were evicted.
        """
        library.call("edgekv_archive_append", self._handle, cache.handle)

    def take(self, cache: Cache, n_kept: int) -> None:
        """Have the rows of all tokens that the cache was fed since the last call, so that their cells may be evicted.

        n_kept: newest tokens, at most, whose rows are copied from a device, and wait for `write`; others are written

        Raises the errors of `append`. What was taken before is written first.
        """
        library.call("edgekv_archive_take", self._handle, cache.handle, n_kept)

    def write(self) -> None:
        """Write the rows that were taken. Raises ArchiveError if the file cannot be written; they are lost then."""
        library.call("edgekv_archive_write", self._handle)

    def cut(self, end: int) -> None:
        """Forget the positions from `end` on."""
        self._library.edgekv_archive_cut(self._handle, end)

    def recall(self, cache: Cache, n_cells: int, **span: Any) -> structs.Recall:
        """Recall in one call. Arguments as of `begin_recall`; result as of `finish_recall`, and errors of all steps."""
        params, result = structs.RecallParams(n_cells, **span), structs.Recall()
        library.call("edgekv_cache_recall", cache.handle, self._handle, c.byref(params), c.byref(result))
        return result

    def begin_recall(
        self,
        cache: Cache,
        n_cells: int,
        *,
        n_rows: int = 0,
        before: int,
        after: int,
        n_sink: int = 0,
        with_rest: bool = False,
        n_needed: int = 0,
    ) -> int:
        """Begin to fill free cells with the archived tokens that get most attention from the last probe's queries.

        n_cells: of a head on average, at most. Heads share them, so one may get more than another
        n_rows: newest tokens of the probe that score; 0 = all
        before, after: a cell's score is the sum of what all cells get, half as much for each `before` positions that
            one lies before it, and for each `after` positions that it lies after it, up to six times as many
        n_sink: first positions, whose weights count nothing
        with_rest: one of the cells of each head, at position -1, stands for all archived tokens that the head lacks
        n_needed: of the tokens that each head holds, most that `needed` lists

        Returns how many heads are to be scanned, 0 if there is nothing to recall. Call `scan` until no heads are left,
        and then `finish_recall`. Until then no cell changes, and none may be changed. A recall that is not finished is
        given up. Raises NativeError without a probe.
        """
        self._free_work()
        params = structs.RecallParams(n_cells, n_rows, before, after, n_sink, with_rest, n_needed)
        work, n_left = c.byref(self._work), c.c_uint32()
        library.call("edgekv_recall_begin", cache.handle, self._handle, c.byref(params), work, c.byref(n_left))
        return n_left.value

    def scan(self, n_heads: int) -> int:
        """Scan at most so many heads; returns how many are left.

        Raises ArchiveError if the file cannot be read or is damaged, and NativeError if a logit is not finite. The
        cells are then as before.
        """
        n_left = c.c_uint32()
        library.call("edgekv_recall_scan", self._work, n_heads, c.byref(n_left))
        return n_left.value

    def finish_recall(self, cache: Cache) -> structs.Recall:
        """Fill the cells, after all heads were scanned.

        If keys of the cache were turned, those of each head, with the recalled ones, are turned to adjacent positions
        in order.

        `needed` then has the positions that each head held and that score higher than one that was recalled to a head
        which shares its rows.

        Returns the number of cells of a head on average, the keys scored, and times in microseconds. Raises
        ArchiveError if the file cannot be read or is damaged; the cells are then as before, without the cells of an
        earlier recall.
        """
        result, counts = structs.Recall(), np.zeros(cache.shape.n_head_total, np.uint32)
        library.call("edgekv_recall_finish", self._work, cache.handle, c.byref(result))
        n_needed = self._library.edgekv_recall_needed(self._work, counts.ctypes.data)
        self.needed = HeadPositions(counts, np.empty(n_needed, np.int32))
        self._library.edgekv_recall_needed_positions(self._work, self.needed.positions.ctypes.data)
        self._free_work()
        return result

    def refill(self, cache: Cache, n: int) -> None:
        """Give the next n tokens of a cache their cells, with their archived rows, in place of feeding them.

        Raises ArchiveError if the file cannot be read or is damaged, and NativeError if they are not archived, if there
        are fewer free cells, or if decoding leaves more than rows. The cells are then as before.
        """
        library.call("edgekv_cache_refill", cache.handle, self._handle, n)

    def _free_work(self) -> None:
        self._library.edgekv_recall_free(self._work)
        self._work = c.c_void_p()
