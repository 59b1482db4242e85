"""Loads kept sessions: the journal has the log, and the cells are chosen again from the rows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from edgekv.archive.row_folder import RowFolder, parts_of_values
from edgekv.archive.session_archive import Archive
from edgekv.archive.space import ArchiveSpace
from edgekv.archive.stored_rows import row_kind
from edgekv.binding.snapshot_meta import CachedSource
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.block_loop_snapshot import are_ranges
from edgekv.cells.loaded_model import LoadedModel
from edgekv.errors import ArchiveError, ConfigError, SessionFileError
from edgekv.store.journal import Journal, Use
from edgekv.store.kept_folder import Newest, fill_log, newest, open_journal
from edgekv.store.log import TokenLog

from .kept_session import KeptSession, why
from .sequence_state import SequenceState
from .session_codec import said_of, system_of
from .session_file import check_model
from .snapshot import Said


class KeptContents:
    """The contents of a kept session, whose tokens a state's log has now.

    kept: the folder, which stays open
    system, pinned, said: the system message, ranges that are never evicted, and the state of the conversation
    """

    def __init__(self, path: Path, engine: LoadedModel, state: SequenceState, use: Use) -> None:
        """Open and read a folder. Raises SessionFileError, and BudgetError if its system message leaves no cells."""
        assert state.history is not None
        self._log, self._files = state.history.log, RowFolder(path)
        journal = open_journal(path, use)
        try:
            found = newest(journal)
            check_model(found.header, engine, journal.name)
            self.said = read_log(journal, found, self._log, engine.model.n_vocab)
            self.system = system_of(found.header)
            self.pinned = tuple(map(tuple, found.header.value("pinned", are_ranges)))
            self._row_kind: list[int] = found.header.value("row_kind", lambda it: isinstance(it, list))
            self._end, self._parts = parts_of_values(found.rows, found.n_past)
            engine.options.check_budget(engine.plan.budget_cells, sum(p1 - p0 for p0, p1 in self.pinned))
        except OSError as error:
            journal.close()
            raise SessionFileError(f"{journal.name} cannot be read: {why(error)}; check its permissions") from error
        except BaseException:
            journal.close()
            raise
        self._log.note_recorded()
        noted = {} if found.said is None else {**found.said.values}
        noted["rows"] = None if found.rows is None else found.rows.values
        self.kept = KeptSession(path, journal, state, engine, use, noted)

    def fill(self, block_loop: BlockLoop, archive: Archive | None, space: ArchiveSpace | None) -> None:
        """Give the tokens of the log their cells: from their rows as far as these go, the others are read again."""
        cache, n = block_loop.cache, len(self._log)
        block_loop.begin()
        block_loop.log = block_loop.archive = None
        block_loop.pinned = self.pinned
        if archive is not None and space is not None:
            self._refill(block_loop, archive, space)
        block_loop.archive = archive
        if cache.n_past < n:
            block_loop.repositioning.expect(n - cache.n_past)
            block_loop.read(self._log.tokens(cache.n_past, n), lambda _: True, want_logits=False)

    def _refill(self, block_loop: BlockLoop, archive: Archive, space: ArchiveSpace) -> None:
        """Refill the cells from the rows, and have an archive go on after them."""
        cache, kept = block_loop.cache, self.kept
        if self._parts and block_loop.refills and self._row_kind == row_kind(CachedSource(cache)):
            with suppress(OSError, ConfigError, ArchiveError):  # rows that cannot be had are computed again
                limit = space.limit(self._files.n_bytes)
                rows = self._files.open(cache, self._parts, self._end, limit, writes=kept.appends)
                archive.take_up(rows, self._parts[-1].first, limit)
                block_loop.refill(self._log.tokens(0, self._end), archive, len(self._log))
        archive.keeper = kept if kept.appends else None
        archive.go_on_from(cache)


def read_log(journal: Journal, found: Newest, log: TokenLog, n_vocab: int) -> Said:
    """Fill an empty log, and return the state of the conversation. Raises SessionFileError."""
    fill_log(journal, found.n_records, log)
    said = Said() if found.said is None else said_of(found.said.required("said"))
    drawn = [*said.pending, *(said.sampler.newest if said.sampler else ())]
    if len(log) != found.n_past or not log.is_sound(n_vocab) or max(drawn, default=0) >= n_vocab:
        raise journal.damaged("its log has other tokens than it says")
    return said
