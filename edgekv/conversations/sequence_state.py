"""The state of one conversation: its cells, its log, its archive and its turns, which change together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from edgekv.archive.row_files import Mark
from edgekv.archive.session_archive import Archive
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.work import Work
from edgekv.errors import ArchiveError, EdgeKVError, SessionEvictedError
from edgekv.generation.sampler import SamplerState
from edgekv.generation.turn_state import Dialogue, TurnState
from edgekv.store.log import TokenLog

from .beginnings import Beginning
from .session_history import SessionHistory
from .snapshot import Snapshot
from .stored_snapshot import StoredSnapshot


class Kept(Protocol):
    """A conversation's folder (`kept_session.KeptSession`)."""

    failure: str

    def note(self, *, ends: bool = False) -> None:
        """Append what is not there yet."""

    def close(self) -> None:
        """Give it up."""


class SequenceState(TurnState):
    """All state of a conversation, whether its cells are loaded or swapped out.

    history: log and checkpoints; None = the conversation keeps none
    archive: what was evicted; None = it is forgotten
    kept: appends it to a folder as it grows; None = it ends with the engine
    block_loop: the one that has its cells, or had them last
    pinned: position ranges [p0, p1) that are never evicted
    work: counters of the block loop for this conversation
    lost: the reason why its state is gone; "" = it is not gone
    is_in_checkpoint: it is swapped out as a checkpoint, and has no other copy
    figures: the tokens that it has read and generated, and its cells per head, as they were last noted: at the end of
        every call, pause and block. Any thread may read them. All else is for the loop's thread
    """

    def __init__(
        self, block_loop: BlockLoop, history: SessionHistory | None = None, archive: Archive | None = None
    ) -> None:
        self.history = history
        self.archive = archive
        self.kept: Kept | None = None
        self.pinned: tuple[tuple[int, int], ...] = ()
        self.work = Work()
        self.lost = ""
        self.is_in_checkpoint = False
        self.block_loop = block_loop
        self.figures = 0, 0
        self._n_recallable = 0  # while an archive lacks some, as noted at the end of a call
        self._unfinished: Callable[[], None] | None = None  # an interrupted change, made again at the next use

    @property
    def is_loaded(self) -> bool:
        """True if it has the cells."""
        return self.block_loop.owner is self

    @property
    def n_past(self) -> int:
        """Tokens read and generated so far."""
        return self.block_loop.cache.n_past if self.is_loaded else self.figures[0]

    @property
    def n_cells(self) -> int:
        """Cells used per head."""
        return self.block_loop.cache.n_cells if self.is_loaded else self.figures[1]

    def note(self) -> None:
        """Update counters and figures, if it has the cells."""
        if self.is_loaded:
            usage = self.block_loop.cache.usage
            self.work, self.figures = self.block_loop.work, (usage.n_past, usage.n_cells)

    @property
    def n_recallable(self) -> int:
        """Tokens with archived rows and no cell, on average over heads, as of `figures`. Any thread may ask."""
        n_past, n_cells = self.figures
        if self.archive is None or n_cells >= n_past:
            return 0
        return n_past - n_cells if self.archive.is_whole else self._n_recallable

    def note_recallable(self) -> None:
        """Note the number of recallable tokens, with the cells."""
        if self.archive is not None and not self.archive.is_whole:
            self._n_recallable = self.archive.n_recallable(self.block_loop.cache)

    def evict(self) -> None:
        """Evict the cells beyond the budget, which it has, and drop checkpoints, which may have more."""
        self.settle()
        self.block_loop.shrink()
        self.drop_checkpoints()
        self.note()

    def drop_checkpoints(self) -> None:
        """Drop all checkpoints. A loaded sequence needs none."""
        if self.history is not None:
            self.history.checkpoints.drop_from(0)

    def empty(self) -> None:
        """Note that its cells were given to another conversation."""
        self.figures = 0, 0

    def evicted(self) -> SessionEvictedError:
        """Return the error for using it after its state is gone."""
        return SessionEvictedError(f"{self.lost}; open another with Runtime.session()")

    def release(self) -> None:
        """Remove all files of log, checkpoints and archive, and give up the folder that it is kept in."""
        if self.kept is not None:
            self.kept.close()
            self.kept = None
        if self.archive is not None:
            self.archive.close()
            self.archive = None
        if self.history is not None:
            self.history.close()
            self.history = None

    def use_log(self) -> None:
        """Have the block loop note every feed in the log, and archive what it evicts."""
        self.block_loop.log = None if self.history is None else self.history.log
        self.block_loop.archive = self.archive

    def settle(self) -> None:
        """Bring log and the block loop's notes into agreement with the cells, and redo an interrupted change."""
        if self.is_loaded:
            self.use_log()
            self.block_loop.settle()
            if self._unfinished is not None:
                self._change(self._unfinished)
        if self.n_past == 0 and self.turns != "new":  # a device may have lost all cells
            self.set(Dialogue(sampler=self.sampler))
        if self.history is not None:
            self.history.log.cut(self.n_past)
        if self.archive is not None:
            self.archive.cut(self.n_past)

    @property
    def is_settled(self) -> bool:
        """True if the log agrees with the cells, and no change is unfinished."""
        return self._unfinished is None and (self.history is None or len(self.history.log) == self.n_past)

    def restorable(self, n: int, *, refills: bool = True) -> int:
        """Return the tokens that `go_back` to n tokens leaves."""
        if n >= self.n_past or self.history is None:
            return min(n, self.n_past)
        if n >= self.block_loop.earliest:
            return n
        first = self.history.restorable(n)
        return self._refillable(first, n) if refills else first

    def _refillable(self, first: int, n: int) -> int:
        """Return up to which token, at most n, the archive can bring back the cells, after the first `first` ones."""
        if self.archive is None or not self.block_loop.refills:
            return first
        if self.is_loaded:
            self.archive.append(self.block_loop.cache)
        return self.archive.reaches(first, n)

    def go_back(self, n: int, *, refills: bool = True, other_draws: bool = False) -> None:
        """Go back to n tokens if the cells of later ones can be dropped.

        Otherwise go back to the newest checkpoint of at most n tokens, or to the beginning. From there the archive
        brings back the cells that the policy keeps of the first n tokens, if it has their rows.

        The log keeps n tokens.
        refills: False = the archive brings nothing back, because what comes next is read with a question in mind
        other_draws: the sampler does not go back, but for the tokens that it penalises
        """
        drawn = self.sampler
        if n >= self.n_past:
            return
        n_before = self.n_past
        drops = n >= self.block_loop.earliest  # decided once: a change that is made again may find half of a checkpoint
        if not drops:
            self._refillable(0, n)  # archives the newest tokens before their cells change

        def change() -> None:
            dialogue = Dialogue()
            if self.history is None:
                self.block_loop.begin()
            elif drops:
                dialogue = self.history.dropped_to(n, self.block_loop)
            else:
                dialogue = self.history.back_to(n, self.block_loop)
                if refills:
                    dialogue = self._refilled(n, n_before, dialogue)
            if self.archive is not None:
                self.archive.cut(self.n_past)
            if other_draws and drawn is not None:
                dialogue = dialogue._replace(
                    sampler=replace(drawn, newest=() if dialogue.sampler is None else dialogue.sampler.newest)
                )
            self.set(dialogue)
            if self.history is not None:
                self.history.log.cut(n)

        self._change(change)

    def _refilled(self, n: int, n_before: int, dialogue: Dialogue) -> Dialogue:
        """Refill the cells up to the n-th token, as far as the archive has their rows; returns the dialogue by then.

        n_before: tokens of the text that is gone back in; dialogue: by now
        """
        first, history = self.n_past, self.history
        end = self._refillable(first, n)
        if history is None or self.archive is None or end == first:
            return dialogue
        with suppress(ArchiveError):  # it is noted, and the others are read again
            self.block_loop.refill(history.log.tokens(first, end), self.archive, n_before - first)
        return Dialogue(history.log.state_at(self.n_past), sampler=dialogue.sampler)

    def begin_as(self, other: SequenceState) -> None:
        """Begin with the notes of another conversation, which has the cells. A copy of these was swapped out for it.

        Both archives then have the rows of its tokens in common.
        """
        self.pinned, self.figures = other.pinned, other.figures
        self.set(other.dialogue)
        if self.archive is not None and other.archive is not None:
            self.archive.go_to(other.archive.mark(other.n_past), other.block_loop.cache)
            self._n_recallable = other.n_recallable

    def begin_with(self, beginning: Beginning, log: TokenLog, n_common: int) -> None:
        """Go to a beginning that other conversations share; needs a log.

        log: takes the place of the log, and holds the tokens of the beginning
        n_common: length of the common prefix of both logs

        If the file of the beginning is gone or damaged, go back as `go_back` does.
        """
        assert self.history is not None
        history, before = self.history, self.history.log

        def change() -> None:
            if beginning.load(self.block_loop):
                history.checkpoints.drop_from(n_common + 1)
                history.log = log
                self.set(Dialogue(beginning.turns))
                self._go_to_archive(beginning.stored.archived)
            else:
                self.set(history.back_to(n_common, self.block_loop))
                history.log.cut(n_common)
                if self.archive is not None:
                    self.archive.cut(self.n_past)
            self.use_log()

        self._change(change)
        (before if history.log is log else log).close()

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. Raises SessionError for one without a history if this conversation keeps one."""

        def change() -> None:
            before, block_loop = self.history, self.block_loop
            if before is None:
                block_loop.restore(snapshot.block_loop)
                self.set(snapshot.dialogue)
                self._go_to_archive(snapshot.archive)
                return
            history = before.restored(snapshot, block_loop)
            self.set(snapshot.dialogue)
            self._go_to_archive(snapshot.archive)
            self.history, block_loop.log = history, history.log
            before.log.close()

        self._change(change)

    def _go_to_archive(self, mark: Mark | None) -> None:
        """Have the archive go to the tokens of a mark, which have the cells now."""
        if self.archive is not None:
            self.archive.go_to(mark, self.block_loop.cache)
            if self.history is not None:
                self.history.checkpoints.drop_those_beside_others(self.archive)

    def _change(self, change: Callable[[], None]) -> None:
        """Change cells, log and turns as one. After an exception the next `settle` makes the whole change again.

        A change that was refused before any cell changed is forgotten.
        """
        cache = self.block_loop.cache
        n_overwritten = cache.n_overwritten
        self._unfinished = change
        try:
            change()
        except EdgeKVError:
            if cache.n_overwritten == n_overwritten:
                self._unfinished = None
            raise
        self._unfinished = None

    def checkpoint(self) -> StoredSnapshot | None:
        """Return the newest checkpoint if it matches the current state. Such a session needs no swap space."""
        return None if self.history is None else self.history.current_checkpoint(self.n_past, self.dialogue)

    def note_token(self, token: int, sampler: SamplerState) -> None:
        """Note a generated token, and the sampler after it. Others may have the cells before the next one."""
        self.note()
        turns = self._known.turns if self._known.prompt is None else self.turns
        self._known = self._known._replace(
            turns=turns, pending=(token,), said_at=self.figures[0], sampler=sampler, prompt=None
        )
