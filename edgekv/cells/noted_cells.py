"""The cells of a slot, and the notes on them, which agree with the cells after any exception."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edgekv.archive.row_files import Mark
from edgekv.archive.session_archive import Archive
from edgekv.binding import structs
from edgekv.binding.cache import Cache
from edgekv.options import Options
from edgekv.store.log import TokenLog

from .block_loop_snapshot import BlockLoopNotes, BlockLoopSnapshot
from .repositioning import Announced, Repositioning
from .speculation import Speculation
from .work import Work

Fed = tuple[int, Sequence[int]]  # first position, and the tokens that are fed from there
NOTHING: Fed = (0, ())


class NotedCells:
    """The cells of a slot, and what a block loop notes on them.

    An exception may come between a call of the library and the notes on it. `settle` then takes the notes again.

    pinned: position ranges [p0, p1) that are never evicted
    log: notes the tokens of every feed; None = no log
    archive: takes the rows of all tokens before cells are evicted, and gives them back; None = no archive
    owner: the conversation that has the cells; None = no conversation has them
    watch: called with the tokens of every feed, while all of them are still in the cache; None = no watcher
    """

    def __init__(self, cache: Cache, options: Options, n_ctx_train: int) -> None:
        self.cache = cache
        self.repositioning = Repositioning(cache, options, n_ctx_train)
        self.pinned: tuple[tuple[int, int], ...] = ()
        self.work = Work()
        self.log: TokenLog | None = None
        self.archive: Archive | None = None
        self.owner: object | None = None
        self.watch: Callable[[Sequence[int]], None] | None = None
        self._options = options
        self._speculation = Speculation(min(options.n_draft, cache.shape.n_exact - 1))
        self._scored_at = 0  # n_past at the last scoring
        self._coming = NOTHING  # tokens of a feed, until everything about them is noted
        self._compacting: structs.Compaction | None = None  # result of a compaction, until it is noted
        self._since_probe: int | None = None  # tokens fed since the last probe; None = its queries may not score again
        self._is_moved = False  # the cells are other ones, or are to be, since the last recall began

    def clear(self) -> None:
        """Start over with an empty cache, fresh counters and no log."""
        self.begin()
        self.log = self.archive = None
        self.pinned = ()
        self.work = Work()

    def begin(self) -> None:
        """Empty the cells, and forget all notes on them."""
        self.forget_open()
        self.cache.clear()
        self.repositioning.clear()
        self._scored_at = 0
        self._speculation.earlier.restore(b"")

    @property
    def earliest(self) -> int:
        """The fewest tokens to which `drop_to` can go back.

        After an eviction nothing is dropped: cells were chosen with later tokens, or a question, in mind.
        """
        cache = self.cache
        return cache.n_past - (cache.n_droppable if cache.n_cells == cache.n_past else 0)

    def drop_to(self, n: int) -> None:
        """Go back to n tokens, at least `earliest`: drop the cells of all later ones."""
        self.forget_open()
        if n < self.cache.n_past:
            self.cache.drop(self.cache.n_past - n)
        self._scored_at = min(self._scored_at, n)
        self._speculation.earlier.cut(n)
        self.repositioning.clear()  # nothing was evicted, so no key was turned

    def settle(self) -> None:
        """Take the notes that an exception prevented, and drop a draft.

        Call it before the next use, even if the last one failed.
        """
        self._speculation.drop()
        self._since_probe = None
        self._note_fed()
        if self._compacting is not None and (self._compacting.score_us > 0 or self._compacting.n_evicted > 0):
            self._note_scored()
        self._compacting = None
        self.repositioning.settle()

    def forget_open(self) -> None:
        """Forget the notes that are still open, because other cells take the place of theirs."""
        self._coming, self._compacting = NOTHING, None
        self._speculation.drop()
        self._since_probe = None

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a snapshot, if it was taken now."""
        return self.cache.snapshot_bytes + self._speculation.earlier.nbytes

    @property
    def stored_bytes(self) -> int:
        """The most bytes of a snapshot beside the archive, if it was taken now."""
        rows = None if self.archive is None else self.archive.handle
        return self.cache.snapshot_bytes_beside(rows) + self._speculation.earlier.nbytes

    def mark(self) -> Mark | None:
        """Return a mark of all tokens, which are archived if some were; None = there is no archive."""
        archive = self.archive
        if archive is None:
            return None
        if archive.n_tokens:
            self.archive_fed()
        return archive.mark(self.cache.n_past)

    def snapshot(self) -> BlockLoopSnapshot:
        """Copy the cells and the notes on them into memory, without counters and budget."""
        return BlockLoopSnapshot(self.cache.snapshot(), self.notes)

    @property
    def notes(self) -> BlockLoopNotes:
        """The notes on the cells."""
        fresh, is_long = self.cache.n_past - self._scored_at, self.repositioning.is_long
        return BlockLoopNotes(self.pinned, fresh, is_long, self._speculation.earlier.to_bytes())

    def restore(self, snapshot: BlockLoopSnapshot) -> None:
        """Go back to a snapshot. Raises ConfigError for one of another cache.

        After any other exception, call `restore` again or empty the cells.
        """
        self.settle()
        self.forget_open()
        self.cache.restore(snapshot.cells)
        self.take(snapshot.notes)

    def take(self, notes: BlockLoopNotes) -> None:
        """Take the notes on cells that the cache holds already."""
        n_past = self.cache.n_past
        self.forget_open()
        self._is_moved = True
        self.pinned = notes.pinned
        self._scored_at = n_past - notes.fresh
        self.repositioning.restore(is_long=notes.is_long)
        self._speculation.earlier.restore(notes.history if self._speculation.n_most else b"", n_past)

    @property
    def waiting(self) -> tuple[Fed, Announced]:
        """The notes on a feed that waits, which no snapshot has, for `wait_again`."""
        return self._coming, self.repositioning.announced

    def wait_again(self, waiting: tuple[Fed, Announced]) -> None:
        """Take the notes on a feed that waits, after its cells were restored."""
        self._coming, self.repositioning.announced = waiting

    @property
    def refills(self) -> bool:
        """True if archived rows are all that reading a token leaves: no window, state or query that scores."""
        shape = self.cache.shape
        has_states = shape.window_cells or shape.state_bytes or shape.device_state_bytes
        return not has_states and "queries" not in self._options.parsed_policy.reads

    def archive_fed(self) -> None:
        """Archive the tokens that were fed since the last time."""
        self._take_fed()
        self._write_taken()

    def _take_fed(self) -> None:
        """Have the archive take the rows of these tokens, so that their cells may be evicted.

        First it writes what it took before. So a device computes a block while the rows of the one before are written.
        """
        self._archive_by(lambda archive: archive.take(self.cache, self._options.block))

    def _write_taken(self) -> None:
        """Have the archive write what it took, where no more is taken soon."""
        self._archive_by(Archive.write)

    def _archive_by(self, step: Callable[[Archive], None]) -> None:
        archive = self.archive
        if archive is None:
            return
        started, n_before = time.perf_counter(), archive.written_bytes
        step(archive)
        self.work.archive_bytes += archive.written_bytes - n_before
        self.work.archive_s += time.perf_counter() - started

    def _make_room(self, n_tokens: int) -> None:
        """Reserve room in the log before tokens get cells, so that every fed token is in the log, whatever fails."""
        if self.log is not None:
            self.log.make_room(n_tokens)

    def _note_fed(self) -> None:
        """Note the coming tokens that have their cells. Each note knows its position, so it may be taken again."""
        first, tokens = self._coming
        n_past = self.cache.n_past
        if not tokens or n_past <= first:
            return
        fed = tokens[: n_past - first]
        if self.log is not None:
            self.log.follow(fed, n_past)
        if self._speculation.n_most:
            self._speculation.earlier.follow(fed, n_past)
        self._coming = NOTHING
        if self.watch is not None:
            self.watch(fed)

    def _note_scored(self) -> None:
        """Note that all tokens have their scores."""
        self._scored_at = self.cache.n_past
