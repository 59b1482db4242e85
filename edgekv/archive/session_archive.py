"""The rows of one conversation's tokens in a file, and recall: cells are filled again with what a prompt needs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence

from edgekv.binding.cache import Cache
from edgekv.binding.row_archive import RowArchive
from edgekv.errors import ArchiveError, SessionFileError
from edgekv.store.temp_array import temp_file

from .folders import archive_folder

ROUNDS = (
    2  # the first probe's queries come from cells that lack the fact; those of the second see what the first brought
)
BEFORE, AFTER = 20, 10  # positions; what follows a hit matters more than what precedes it
MOST_RECALLED = 64  # cells of a head
TURNED = (
    "keys were turned to other positions, as a text longer than the trained context needs it; what was evicted is "
    "recalled no more"
)


def recalled_cells(spare: int) -> int:
    """Return how many cells of a head a recall fills: half of the spare ones, at most MOST_RECALLED.

    The others take the end of the prompt and the beginning of the reply.
    """
    return min(MOST_RECALLED, spare // 2)


class Mark:
    """The number of tokens that an archive goes back to. It is void once one of them is cut, for others may follow."""

    def __init__(self, n_past: int) -> None:
        self.n_past = n_past


class Archive:
    """The rows of a conversation's tokens in a private file, which is gone once it is closed.

    Call `append` before every eviction, and `cut` or `restart` whenever the cells of the conversation are replaced.

    asked: tokens at the end of the last prompt, which recall; once more after each eviction while the reply goes on
    failure: why it takes no more rows, or gives none back; "" = it does
    """

    def __init__(self, cache: Cache, folder: str | None, limit_bytes: int, begin: int = 0) -> None:
        """Make the file. Raises SessionFileError if the folder takes none.

        folder: None = `archive_folder`
        limit_bytes: the file never grows beyond it
        begin: position of the first token that will be archived
        """
        place = archive_folder(folder)
        try:
            self._file = temp_file(place)
        except OSError as error:
            raise SessionFileError(
                f"{place} takes no archive: {error.strerror or error}; name another folder with swap_dir, or leave "
                "archive out"
            ) from error
        self._limit_bytes = limit_bytes
        self._begin(cache, begin)

    def _begin(self, cache: Cache, begin: int) -> None:
        self._rows = RowArchive(cache, self._file.fileno(), begin, self._limit_bytes)
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()
        self.asked: Sequence[int] = ()
        self.failure = ""
        self._is_readable = True

    def close(self) -> None:
        """Remove the file."""
        self._rows.close()
        self._file.close()

    @property
    def n_tokens(self) -> int:
        """Tokens whose rows are archived."""
        return self._rows.end - self._rows.begin

    @property
    def written_bytes(self) -> int:
        """Bytes written so far."""
        return self._rows.written_bytes

    def cut(self, n_past: int) -> None:
        """Forget the positions from n_past on."""
        self._rows.cut(n_past)
        self._marks = weakref.WeakSet(mark for mark in self._marks if mark.n_past <= n_past)

    def mark(self, n_past: int) -> Mark:
        """Return a mark of the first n_past tokens, which are all that were fed."""
        mark = Mark(n_past)
        self._marks.add(mark)
        return mark

    def go_to(self, mark: Mark | None, cache: Cache) -> None:
        """Go back to the tokens of a mark, which a cache has now; begin again if they are not all archived."""
        if mark is not None and mark in self._marks and not self.failure:
            self.cut(mark.n_past)
        else:
            self.restart(cache)

    def restart(self, cache: Cache) -> None:
        """Begin again after the tokens of a cache, because its cells come from elsewhere."""
        self._rows.close()
        os.truncate(self._file.fileno(), 0)
        self._begin(cache, cache.n_past)

    def append(self, cache: Cache) -> None:
        """Write the rows of all tokens that were fed since the last call. If that cannot be done, note why."""
        if cache.rope_past != cache.n_past:
            self.failure, self._is_readable = TURNED, False
        if self.failure:
            return
        try:
            self._rows.append(cache)
        except ArchiveError as error:
            self.failure = str(error)

    def recall(self, cache: Cache, probe: Callable[[], None], n_cells: int, rounds: int = ROUNDS) -> int:
        """Fill free cells of every head with what a probe's queries find; returns how many cells of each.

        probe: feeds the probe, once for each round
        If the file cannot be read, note why; no cells are filled then.
        """
        filled = 0
        if not self._is_readable:
            return filled
        try:
            for _ in range(rounds):
                probe()
                filled = self._rows.recall(cache, n_cells, before=BEFORE, after=AFTER).n_cells
        except ArchiveError as error:
            self.failure, self._is_readable = str(error), False
            return 0
        return filled
