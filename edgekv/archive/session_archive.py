"""The rows of one conversation's tokens, in a file that grows with them."""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Sequence

import numpy as np

from edgekv.binding.cache import Cache
from edgekv.binding.held_cells import HeadPositions
from edgekv.binding.row_archive import SEGMENT_TOKENS, RowArchive
from edgekv.errors import ArchiveError
from edgekv.memory.sizes import format_size
from edgekv.store.temp_array import temp_file

from .row_files import Keeper, Mark, Rows, RowsFile
from .space import ArchiveSpace, disk_folder


class Archive:
    """The rows of a conversation's tokens in a private file, which is made for the first eviction.

    Call `append`, or `take` and later `write`, before every eviction, and `cut`, `go_to` or `restart` whenever the
    cells of the conversation are replaced. Archives that began with the same mark have their first segments in common.

    keeper: has its files; None = they are temporary
    asked: tokens at the end of the last prompt, which recall
    brought: positions of the cells that they recalled, which stay while the reply goes on; None = nothing was recalled
    needed: positions that heads held and that they would have recalled, which stay within the budget as long
    """

    def __init__(self, space: ArchiveSpace) -> None:
        """space: has the folder, and the most bytes that the file may take when it is made"""
        self.space = space
        self._limit_bytes = 0
        self._rows: RowArchive | None = None
        self.keeper: Keeper | None = None
        self._restart(0)
        space.archives.add(self)

    def _restart(self, begin: int) -> None:
        """Begin again with the token at this position, in a new file."""
        self.close()
        self._begin = self._own_begin = begin  # the first position, and that of the file that is written to
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()  # those whose tokens it still has
        self.asked: Sequence[int] = ()
        self.brought: HeadPositions | None = None
        self.needed: HeadPositions | None = None
        self._failure = ""  # why it takes no more rows, or gives none back
        self._lost = ""  # why it did not get rows that others had archived
        self._is_readable = True

    def close(self) -> None:
        """Let the files go. Each is removed unless another archive or a mark has it."""
        if self._rows is not None:
            self._rows.close()
        self._rows = None
        self._n_taken: int | None = None  # tokens of the cache whose rows were taken last; None = those are written
        self._files: tuple[RowsFile, ...] = ()
        self._base: Mark | None = None  # the mark that it began with, whose rows nobody may write over

    @property
    def _file(self) -> RowsFile | None:
        """The file that is written to."""
        return self._files[-1] if self._files else None

    @property
    def rows(self) -> Rows | None:
        """The rows that are archived; None = there are none, or they cannot be read."""
        return None if self._rows is None or not self._is_readable else Rows(self._rows, self._files)

    @property
    def failure(self) -> str:
        """The reason why it takes no more rows, or gives none back, and what is forgotten; "" = it does."""
        return self._failure or self._lost

    @property
    def handle(self) -> c.c_void_p | None:
        """The rows that can be read, for calls of the library; None = there are none."""
        return None if (rows := self.rows) is None else rows.archive.handle

    @property
    def positions(self) -> tuple[int, int]:
        """Positions [begin, end) whose rows are archived and can be read; empty if there are none."""
        return (0, 0) if (rows := self.rows) is None else (rows.archive.begin, rows.archive.end)

    @property
    def n_tokens(self) -> int:
        """Tokens whose rows are archived."""
        begin, end = self.positions
        return end - begin

    @property
    def written_bytes(self) -> int:
        """Bytes written since it began."""
        return 0 if self._rows is None else self._rows.written_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that the file may still grow by."""
        return 0 if self._file is None else max(0, self._limit_bytes - self._file.n_bytes)

    @property
    def is_whole(self) -> bool:
        """True if every token that was evicted is archived."""
        begin, end = self.positions
        return begin == 0 < end and not self.failure

    def n_recallable(self, cache: Cache) -> int:
        """Return how many tokens have archived rows and no cell, on average over heads."""
        begin, end = self.positions
        if begin == end:
            return 0
        held = cache.all_positions()
        n_held = sum(np.count_nonzero((it >= begin) & (it < end)) for it in held) / max(1, len(held))
        return end - begin - round(n_held)

    def cut(self, n_past: int) -> None:
        """Forget the positions from n_past on."""
        self.write()
        if n_past < self._begin or (n_past == self._begin and self._failure):
            self._restart(n_past)
            return
        self._marks = weakref.WeakSet(mark for mark in self._marks if mark.n_past <= n_past)
        if self._rows is not None and n_past <= self._rows.end:
            self._rows.cut(n_past)
            if self._is_readable:
                self._failure = ""  # there is room again

    def reaches(self, first: int, n: int) -> int:
        """Return up to which token, at most n, the rows of all tokens from `first` on are archived."""
        begin, end = self.positions
        return max(first, min(n, end)) if begin <= first else first

    def refill(self, cache: Cache, n: int) -> None:
        """Give the next n tokens of a cache their cells, with their archived rows, in place of feeding them.

        If the file cannot be read, note why, and raise ArchiveError.
        """
        assert self._rows is not None, "`reaches` says which tokens can be refilled"
        try:
            self._rows.refill(cache, n)
        except ArchiveError as error:
            self.fail(error)
            raise

    def stored(self, cache: Cache) -> Rows | None:
        """Archive all tokens that a cache was fed, and return the rows; None = nothing was archived before."""
        if self.rows is None:
            return None
        self.append(cache)
        return self.rows if self.n_tokens else None

    def lose(self, reason: str, n_past: int) -> None:
        """Note why the rows of the tokens before n_past, which were archived once, cannot be had."""
        self._lost = f"{reason}; what was evicted before token {n_past:,} is forgotten"

    def mark(self, n_past: int) -> Mark:
        """Return a mark of the first n_past tokens, which are all that were fed."""
        self.write()
        rows = self.rows
        mark = Mark(n_past, None if rows is None else rows._replace(archive=rows.archive.copy()))
        self._marks.add(mark)
        return mark

    def share(self, cache: Cache, n_past: int) -> Mark:
        """Return a mark of the first n_past tokens, all that a cache was fed, which is to outlive this archive.

        Later rows go to another file, so the mark keeps no more of the disk than its tokens take.
        """
        if self._rows is not None:
            self.append(cache)
        mark = self.mark(n_past)
        if mark.rows is not None:
            try:
                self._branch(cache, self._limit_bytes)
            except ArchiveError as error:
                self._note(str(error))
        return mark

    def has(self, mark: Mark | None) -> bool:
        """Return True if this archive made a mark, and its tokens were not cut."""
        return mark is not None and mark in self._marks

    def go_to(self, mark: Mark | None, cache: Cache) -> None:
        """Go to the tokens of a mark, which a cache has now. Without rows of them begin again."""
        if mark is not None and self.has(mark) and self._is_readable:
            self.cut(mark.n_past)
        elif mark is None or mark.rows is None:
            self.restart(cache)
        else:
            self.go_on_with(Rows(mark.rows.archive.copy(), mark.rows.files), cache)
            self._base = mark

    def go_on_with(self, rows: Rows, cache: Cache) -> None:
        """Go on after rows that other archives have, too; they become this one's. A cache has their tokens now.

        If that cannot be done, note why, and begin again.
        """
        self._restart(rows.archive.begin)
        self._rows, self._files = rows
        self._limit_bytes = 0
        try:
            self._keep_files(cache)
            self._branch(cache, self.space.limit())
        except ArchiveError as error:
            self.restart(cache)
            self.lose(str(error), cache.n_past)
        else:
            self.append(cache)

    def keep(self, keeper: Keeper, cache: Cache) -> None:
        """Keep all files in a keeper from now on, with the rows so far if they begin with the first token.

        Raises OSError and ArchiveError if that cannot be written; the archive is then as before.
        """
        rows, before, self.keeper = self.rows, self.keeper, keeper
        if rows is None or rows.archive.begin > 0:
            return
        try:
            self.append(cache)
            if self.n_tokens == 0:
                self._restart(0)  # the file that it had is not the keeper's
                return
            kept = keeper.adopted(rows, cache)
        except BaseException:
            self.keeper = before
            raise
        self.go_on_with(kept, cache)

    def take_up(self, rows: Rows, own_begin: int, limit_bytes: int) -> None:
        """Begin with rows of the first tokens, which are in no cache yet. `refill` reads them.

        own_begin: the first position in the last file
        """
        self._restart(0)
        self._rows, self._files = rows
        self._own_begin, self._limit_bytes = own_begin, limit_bytes

    def go_on_from(self, cache: Cache) -> None:
        """Keep the rows of a cache's tokens, and forget later rows, which may be unreadable."""
        self._is_readable, self._failure = True, ""
        self.cut(cache.n_past)
        if self._rows is not None and self.keeper is None:
            try:
                self._branch(cache, self.space.limit())
            except ArchiveError as error:
                self._note(str(error))

    def _keep_files(self, cache: Cache) -> None:
        """Have the keeper keep the files of others that the rows lie in. Raises ArchiveError."""
        rows = self.rows
        if self.keeper is None or rows is None or rows.archive.begin > 0:
            return
        try:
            kept = self.keeper.adopted(rows, cache)
        except OSError as error:
            raise ArchiveError(f"rows of others cannot be kept: {error.strerror or error}") from error
        if kept is not rows:
            rows.archive.close()
            self._rows, self._files = kept

    def _branch(self, cache: Cache, limit_bytes: int) -> None:
        """Write later rows to a new file. Raises ArchiveError; nothing more is written then."""
        assert self._rows is not None
        rows, file = self._rows, self._new_file()
        try:
            rows.branch(cache, rows.end, file.fileno(), limit_bytes)
        except ArchiveError:
            self._rows = rows.copy()
            rows.close()
            raise
        self._files, self._limit_bytes = Rows(rows, (*self._files, file)).in_use().files, limit_bytes
        self._own_begin = rows.end // SEGMENT_TOKENS * SEGMENT_TOKENS

    def restart(self, cache: Cache) -> None:
        """Begin again with the cells of a cache, because they come from elsewhere: with all of its tokens that have
        their cells.
        """
        self._restart(0 if cache.n_cells == cache.n_past else cache.n_past)

    def append(self, cache: Cache) -> None:
        """Write the rows of all tokens that were fed since the last call. If that cannot be done, note why."""
        self.take(cache, 0)
        self.write()

    def take(self, cache: Cache, n_kept: int) -> None:
        """Have the rows of all tokens that were fed since the last call, so that their cells may be evicted.

        Those of the newest n_kept tokens are only copied if they lie on a device: `write` writes them, while the device
        computes what comes next. If that cannot be done, note why.
        """
        self.write()
        if not self._is_readable:
            return
        try:
            rows = self._rows = self._rows or self._made(cache)
            if self._shares(rows.end):
                self._branch(cache, self._limit_bytes)
            self._tell_keeper(cache)
            rows.take(cache, n_kept)
        except ArchiveError as error:
            self._note(str(error))
        self._n_taken = cache.n_past
        if self._rows is None or self._rows.n_taken == 0:
            self.write()

    def write(self) -> None:
        """Write the rows that were taken. If that cannot be done, note why."""
        n_taken, self._n_taken = self._n_taken, None
        if n_taken is None:
            return
        if (rows := self._rows) is not None:
            try:
                rows.write()
            except ArchiveError as error:
                self._note(str(error))
            if rows.end < n_taken and not self._failure:
                self._note(f"its {format_size(self._limit_bytes)} are full")
        if self.keeper is not None:
            self.keeper.has_appended()

    def _tell_keeper(self, cache: Cache) -> None:
        """Tell the keeper that rows are appended. Raises ArchiveError if it cannot note that."""
        rows = self.rows
        if self.keeper is None or rows is None or rows.archive.end >= cache.n_past:
            return
        try:
            self.keeper.will_write(rows)
        except OSError as error:
            self._rows = rows.archive.copy()  # nothing is appended to a copy, so no gap comes after these rows
            rows.archive.close()
            raise ArchiveError(f"its session cannot be kept: {error.strerror or error}") from error

    def _shares(self, position: int) -> bool:
        """Return True if nothing may be written at a position: others have the file, too, or a mark has the rows."""
        file = self._file
        return file is not None and (
            position < self._own_begin or file.is_linked or any(mark.end > position for mark in file.marks)
        )

    def _made(self, cache: Cache) -> RowArchive:
        """Make the file. Raises ArchiveError if the folder takes none."""
        self._files = (self._file or self._new_file(),)
        self._limit_bytes = self.space.limit()
        return RowArchive(cache, self._files[-1].fileno(), self._begin, self._limit_bytes)

    def _new_file(self) -> RowsFile:
        """Make a file. Raises ArchiveError if the folder takes none."""
        place = self.space.folder or disk_folder()
        try:
            return RowsFile(temp_file(place)) if self.keeper is None else self.keeper.new_file()
        except OSError as error:
            self._is_readable = False
            where = place if self.keeper is None else "its folder"
            raise ArchiveError(f"{where} takes no archive: {error.strerror or error}") from error

    def _note(self, reason: str) -> None:
        """Note why it takes no more rows, and which tokens are forgotten."""
        first = self._begin if self._rows is None else self._rows.end
        self._failure = f"{reason}; tokens from {first:,} on are forgotten when they are evicted"

    def fail(self, error: ArchiveError) -> None:
        """Note that the file cannot be read."""
        self._failure, self._is_readable = f"{error}; what was evicted is forgotten", False
