"""Kept sessions: a folder to which a conversation is appended as it grows, so that it survives a kill.

The folder holds the rows of all tokens (`archive.row_folder`), and a journal with the tokens, the turns and the sampler
(`store.kept_folder`). Cells are not stored: they are chosen again from the rows when the session is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt

from edgekv.archive.row_files import Rows, RowsFile
from edgekv.archive.row_folder import RowFolder, parts_of_values
from edgekv.archive.session_archive import Archive
from edgekv.archive.stored_rows import row_kind
from edgekv.binding.cache import Cache
from edgekv.binding.snapshot_meta import CachedSource
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.block_loop_snapshot import are_ranges
from edgekv.cells.loaded_model import LoadedModel
from edgekv.errors import ArchiveError, ConfigError, SessionFileError
from edgekv.generation.turn_state import Dialogue
from edgekv.store.journal import Journal, Use
from edgekv.store.kept_folder import JOURNAL, Newest, changes, fill_log, is_kept, newest, open_journal, remove_kept
from edgekv.store.log import TokenLog

from .sequence_state import SequenceState
from .session_codec import dialogue_of, header_values, system_of
from .session_file import check_model, model_values
from .session_title import title_of


class KeptSession:
    """The folder of an open conversation, which keeps a history. This process has it locked.

    appends: False = it is only read
    failure: why the newest tokens are not there, and from which one on; "" = all are
    """

    def __init__(
        self,
        path: Path,
        journal: Journal,
        state: SequenceState,
        engine: LoadedModel,
        use: Use,
        noted: Mapping[str, Any] | None = None,
    ) -> None:
        """noted: the newest values of its journal; None = it has none yet"""
        self.path = path
        self.failure = ""
        self._journal = journal
        self._files = RowFolder(path)
        self._state = state
        self._engine = engine
        self.appends = use == "append"
        self._noted = {name: value for name, value in (noted or {}).items() if name not in ("first", "tokens")}
        self._overwrites = False  # since the rows were flushed last

    def close(self) -> None:
        """Give up the folder, and remove it if nothing was read."""
        history = self._state.history
        is_empty = history is not None and len(history.log) == 0
        self._journal.close()
        if self.appends and is_empty:
            with suppress(OSError, SessionFileError):
                remove_kept(self.path)

    # ---- what is said and read ----

    def note(self, *, ends: bool = False) -> None:
        """Append what the conversation has more than the folder. If that fails, note why; the next call tries again.

        ends: a turn has ended, so all of it is flushed to the disk
        """
        state, history = self._state, self._state.history
        if not self.appends or history is None or not state.is_settled:
            return
        log = history.log
        dialogue = header_values(None, state.dialogue)
        del dialogue["system"]
        values: dict[str, Any] = {"said": dialogue, "rows": self._rows_values(), "n_cells": state.n_cells}
        values["title"] = title_of(log, self._engine.model) if ends else self._noted.get("title", "")
        if log.is_recorded and values == self._noted:
            return
        n_bytes = self._journal.n_bytes
        try:
            self._append(values, ends=ends)
        except BaseException as error:
            with suppress(OSError):
                self._journal.cut(n_bytes)
            if not isinstance(error, (OSError, SessionFileError)):
                raise
            self.failure = f"{str(self.path)!r} keeps {log.n_recorded:,} tokens, and none after them: {why(error)}"
            return
        self.failure = ""
        self._noted = values
        log.note_recorded()
        if ends:
            self._remove_others()

    def _append(self, values: dict[str, Any], *, ends: bool) -> None:
        """Append the records of what has changed. Raises OSError and SessionFileError."""
        assert self._state.history is not None
        *earlier, (place, numbers) = changes(self._state.history.log)
        for its_place, its_numbers in earlier:
            self._write(its_place, its_numbers)
        if ends and self._overwrites and self._state.archive is not None and (rows := self._state.archive.rows):
            os.fsync(rows.files[-1].fileno())
            self._overwrites = False
        self._write(place | values, numbers, ends=ends)

    def _write(self, values: Mapping[str, Any], numbers: npt.ArrayLike = (), *, ends: bool = False) -> None:
        """Append a record. Raises OSError and SessionFileError."""
        n_before = self._journal.n_bytes
        self._journal.append(values, numbers, ends=ends)
        self._engine.kept_bytes += self._journal.n_bytes - n_before

    def _remove_others(self) -> None:
        """Remove files of rows that went when the conversation went back."""
        rows = None if self._state.archive is None else self._state.archive.rows
        if rows is not None:
            numbers = map(self._files.number_of, rows.files)
            self._files.remove_others(number for number in numbers if number is not None)

    def _rows_values(self) -> dict[str, Any] | None:
        """Return what a record says of rows; None = there are none, or some lie elsewhere."""
        rows = None if self._state.archive is None else self._state.archive.rows
        if rows is None or rows.archive.begin > 0 or rows.archive.end == 0:
            return None
        return self._files.described(rows)

    # ---- as the keeper of an archive ----

    def new_file(self) -> RowsFile:
        """Make a file of rows. Raises OSError."""
        return self._files.new_file()

    def adopted(self, rows: Rows, cache: Cache) -> Rows:
        """Return rows with all their files in this folder. Raises OSError."""
        return self._files.adopted(rows, cache)

    def will_write(self, rows: Rows) -> None:
        """Note before rows are overwritten that they are no longer those of the log. Raises OSError."""
        noted = self._noted.get("rows")
        number, end = self._files.number_of(rows.files[-1]), rows.archive.end
        if noted is None or end >= noted["end"] or all(number != part[0] for part in noted["parts"]):
            return
        kept = noted | {"end": end}
        self._write({"rows": kept}, ends=True)
        self._noted = self._noted | {"rows": kept}
        self._overwrites = True

    def has_appended(self) -> None:
        """Note the tokens whose rows were appended."""
        self.note()


def begin_keeping(path: Path, engine: LoadedModel, state: SequenceState, system: str | None) -> KeptSession:
    """Make the folder of a conversation that has the cells, with all that it has read and said.

    Raises SessionFileError if something has that name, or the disk does not take it; then nothing is left.
    """
    assert state.history is not None
    cache, archive, log = state.block_loop.cache, state.archive, state.history.log
    before = None if archive is None else archive.keeper
    header = {
        "saved_with": model_values(engine),
        "system": system,
        "pinned": list(map(list, state.pinned)),
        "row_kind": row_kind(CachedSource(cache)),
    }
    if is_kept(path) or path.is_file():
        raise SessionFileError(
            f"{str(path)!r} is there already; give another path, or load that session to go on with it"
        )
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        journal = Journal.create(path / JOURNAL, repr(str(path)), header)
    except OSError as error:
        raise SessionFileError(
            f"{str(path)!r} cannot be made: {why(error)}; name a folder that can be written to"
        ) from error
    kept = KeptSession(path, journal, state, engine, "append")
    engine.kept_bytes += journal.n_bytes
    log.forget_recorded()
    try:
        if archive is not None:
            archive.keep(kept, cache)
        kept.note(ends=True)
        if kept.failure:
            raise SessionFileError(f"{kept.failure}; make room on the disk, or give another path")
    except BaseException as error:
        if archive is not None:
            archive.keeper = before
        log.forget_recorded()
        kept.close()
        with suppress(OSError, SessionFileError):
            remove_kept(path)
        if isinstance(error, (OSError, ArchiveError)):
            raise SessionFileError(f"{str(path)!r} cannot be written: {why(error)}; make room on the disk") from error
        raise
    return kept


class KeptContents:
    """The contents of a kept session, whose tokens a state's log has now.

    kept: the folder, which stays open
    system, pinned, dialogue: the system message, ranges that are never evicted, and the state of the conversation
    """

    def __init__(self, path: Path, engine: LoadedModel, state: SequenceState, use: Use) -> None:
        """Open and read a folder. Raises SessionFileError, and BudgetError if its system message leaves no cells."""
        assert state.history is not None
        self._log, self._files = state.history.log, RowFolder(path)
        journal = open_journal(path, use)
        try:
            found = newest(journal)
            check_model(found.header, engine, journal.name)
            self.dialogue = read_log(journal, found, self._log, engine.model.n_vocab)
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

    def fill(self, block_loop: BlockLoop, archive: Archive | None) -> None:
        """Give the tokens of the log their cells: from their rows as far as these go, the others are read again."""
        cache, n = block_loop.cache, len(self._log)
        block_loop.begin()
        block_loop.log = block_loop.archive = None
        block_loop.pinned = self.pinned
        if archive is not None:
            self._refill(block_loop, archive)
        block_loop.archive = archive
        if cache.n_past < n:
            block_loop.repositioning.expect(n - cache.n_past)
            block_loop.read(self._log.tokens(cache.n_past, n), lambda _: True, want_logits=False)

    def _refill(self, block_loop: BlockLoop, archive: Archive) -> None:
        """Refill the cells from the rows, and have an archive go on after them."""
        cache, kept = block_loop.cache, self.kept
        if self._parts and block_loop.refills and self._row_kind == row_kind(CachedSource(cache)):
            with suppress(OSError, ConfigError, ArchiveError):  # rows that cannot be had are computed again
                limit = archive.space.limit(self._files.n_bytes)
                rows = self._files.open(cache, self._parts, self._end, limit, writes=kept.appends)
                archive.take_up(rows, self._parts[-1].first, limit)
                block_loop.refill(self._log.tokens(0, self._end), archive, len(self._log))
        archive.keeper = kept if kept.appends else None
        archive.go_on_from(cache)


def read_log(journal: Journal, found: Newest, log: TokenLog, n_vocab: int) -> Dialogue:
    """Fill an empty log, and return the state of the conversation. Raises SessionFileError."""
    fill_log(journal, found.n_records, log)
    dialogue = Dialogue() if found.said is None else dialogue_of(found.said.required("said"))
    drawn = [*dialogue.pending, *(dialogue.sampler.newest if dialogue.sampler else ())]
    if len(log) != found.n_past or not log.is_sound(n_vocab) or max(drawn, default=0) >= n_vocab:
        raise journal.damaged("its log has other tokens than it says")
    return dialogue


def why(error: Exception) -> str:
    """Return the reason of an error, in words."""
    return getattr(error, "strerror", None) or str(error)
