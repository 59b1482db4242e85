"""An archive of a cache's rows, from Python: append, cut, and recall from it."""

from __future__ import annotations

import ctypes as c

from . import library, structs
from .cache import Cache


class RowArchive:
    """The rows of the tokens at positions [begin, end) of a text, in a file. Close it before the file.

    cache: one with the rows of the model; each call names the one that has the text now

    fd: descriptor of a file that is open for reading and writing
    begin: position of the first token that will be archived
    limit_bytes: the file never grows beyond it

    Raises ConfigError for a position that was not fed and is not the next one.
    """

    def __init__(self, cache: Cache, fd: int, begin: int, limit_bytes: int) -> None:
        self._handle = c.c_void_p()
        library.call("edgekv_archive_open", cache.handle, fd, begin, limit_bytes, c.byref(self._handle))
        self._library = library.load()

    def close(self) -> None:
        """Free the bookkeeping."""
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
    def written_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._library.edgekv_archive_written_bytes(self._handle))

    def append(self, cache: Cache) -> None:
        """Write the rows of all tokens that the cache was fed since the last call, as far as there is room.

        Raises ArchiveError if the file cannot be written, and NativeError if some of them were evicted.
        """
        library.call("edgekv_archive_append", self._handle, cache.handle)

    def cut(self, end: int) -> None:
        """Forget the positions from `end` on."""
        self._library.edgekv_archive_cut(self._handle, end)

    def recall(self, cache: Cache, n_cells: int, *, n_rows: int = 0, before: int, after: int) -> structs.Recall:
        """Fill free cells of every head with the archived tokens that get most attention from the last probe's queries.

        n_cells: of every head, at most
        n_rows: newest tokens of the probe that score; 0 = all
        before, after: a cell's score is the mean of what the cells from `before` positions before it to `after` after
            it get

        Returns the number of cells, the keys scored, and times in microseconds. Raises ArchiveError if the file cannot
        be read or is damaged, UnsupportedModelError for cells that carry more than rows or whose keys were turned, and
        NativeError without a probe, or if a logit is not finite. The cells are then as before, but for those of an
        earlier recall.
        """
        params, result = structs.RecallParams(n_cells, n_rows, before, after), structs.Recall()
        library.call("edgekv_cache_recall", cache.handle, self._handle, c.byref(params), c.byref(result))
        return result
