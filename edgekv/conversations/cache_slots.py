"""Cache ownership: as many conversations as there are slots are loaded in the cells, the others are swapped out."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from edgekv.cells.block_loop import BlockLoop
from edgekv.errors import ArchiveError, SessionEvictedError, SessionFileError, SwapError

from .beginnings import Beginnings
from .kept_beginnings import KeptBeginnings
from .sequence_state import SequenceState
from .stored_snapshot import StoredSnapshot
from .swap import SwapSpace

Filled = TypeVar("Filled")


class CacheSlots:
    """Gives the cells of each block loop to one sequence at a time.

    holding: the sequences that hold a slot; none of them gives up its cells
    at_work: of those the ones whose feed waits for a batch; they only lend theirs, and find them as they were
    kept_beginnings: those beginnings that outlive the engine; None = none do
    """

    def __init__(
        self,
        block_loops: Sequence[BlockLoop],
        swap: SwapSpace,
        holding: Container[object],
        at_work: Container[object],
    ) -> None:
        self.swap = swap
        self._at_work = at_work
        self.kept_beginnings: KeptBeginnings | None = None
        self._block_loops = tuple(block_loops)
        self._numbers = itertools.count()
        self._used = dict.fromkeys(block_loops, -1)  # the number of the last use
        self._holding = holding

    @property
    def beginnings(self) -> Beginnings:
        """The beginnings that sequences share."""
        return self.swap.beginnings

    def swap_in(self, sequence: SequenceState) -> None:
        """Load a sequence into cells, as it left them. If all are taken, another sequence is swapped out first.

        Raises SwapError if there is no room for that, and SessionEvictedError if the state of the sequence is gone.
        """
        if sequence.is_loaded:  # a sequence that is closed just now, too: its reply ends by itself
            self.note_use(sequence.block_loop)
            return
        started = time.perf_counter()
        if sequence.lost:
            raise sequence.evicted()
        is_switch = sequence.n_past > 0 or all(it.owner is not None for it in self._block_loops)
        self._swap_in(sequence, self._emptied_for(sequence))
        if is_switch:  # a new sequence takes free cells without one
            sequence.work.switch_s += time.perf_counter() - started

    def claim(
        self, sequence: SequenceState, fill: Callable[[BlockLoop], Filled], instead_of: SequenceState | None = None
    ) -> Filled:
        """Give a new sequence cells, which `fill` fills; returns its result. If all are taken, one is emptied.

        instead_of: a sequence that gives up its state if `fill` succeeds; if it has cells, `fill` finds them so

        Raises the errors of `fill`, and SwapError if there is no room to swap a sequence out. If cells of
        `instead_of` were overwritten by then, its state is lost.
        """
        if instead_of is None or not instead_of.is_loaded:
            block_loop = self._emptied_for(sequence)
            block_loop.clear()
            filled = fill(block_loop)
        else:
            block_loop = instead_of.block_loop
            instead_of.settle()
            instead_of.note()
            filled = self._replaced(instead_of, block_loop, fill)
        self._own(block_loop, sequence)
        return filled

    def _replaced(self, present: SequenceState, block_loop: BlockLoop, fill: Callable[[BlockLoop], Filled]) -> Filled:
        """Fill the cells of a loaded sequence anew. Its state is lost as soon as the first cell changes."""
        n_overwritten = block_loop.cache.n_overwritten
        try:
            present.lost = "another session was loaded instead of this one"
            block_loop.owner = None
            filled = fill(block_loop)
        except BaseException:
            if block_loop.cache.n_overwritten == n_overwritten:
                self._own(block_loop, present)
                present.lost = ""
            else:
                present.empty()
            raise
        present.empty()
        return filled

    def copy(self, present: SequenceState, copied: SequenceState) -> None:
        """Swap out a copy of a loaded sequence as the cells of a new one. Raises SwapError if there is no room."""
        if present.n_past > 0:
            self.swap.store(copied, present.block_loop, present)

    def evict_to(self, budget: int, sequences: Iterable[SequenceState]) -> None:
        """Evict cells of sequences beyond a budget, swapped out or not, and drop older states with more cells.

        Swapped-out ones are loaded for that. Those that have no room in memory any more go to the disk, even if they
        evict nothing. Sequences at work evict by themselves, after the feed that waits. One whose state is gone tells
        it at its next use.
        Raises SwapError; those that were reached by then have evicted, the others have not.
        """
        self.beginnings.shrink(0, most=0)
        for block_loop in self._block_loops:
            block_loop.budget = budget
        with ExitStack() as lent:
            for sequence in sequences:
                if sequence in self._at_work:
                    sequence.drop_checkpoints()
                elif sequence.n_past > budget or (sequence in self.swap and self.swap.memory_bytes > self.swap.limit):
                    if all(it.owner in self._at_work for it in self._block_loops):
                        lent.enter_context(self._lent(self._block_loops[0]))
                    with suppress(SessionEvictedError):
                        self.swap_in(sequence)
                        if sequence.n_past > budget:
                            sequence.evict()

    def evict_late(self) -> bool:
        """Evict sequences that were at work, and wait for a client now; returns True if others have still to evict."""
        for block_loop in self._block_loops:
            sequence = _owner(block_loop)
            if block_loop.is_resized and sequence not in self._at_work:
                if sequence is None:
                    block_loop.clear()
                else:
                    sequence.evict()
        return any(it.is_resized for it in self._block_loops)

    @contextmanager
    def _lent(self, block_loop: BlockLoop) -> Iterator[None]:
        """Lend the cells of a sequence at work to others, which are swapped out then. It finds them as they were.

        If they cannot be read back, its state is lost. Raises SwapError if the disk does not take them.
        """
        sequence, waiting = _owner(block_loop), block_loop.waiting
        assert sequence is not None
        sequence.note()
        kept = self.swap.written(block_loop)
        block_loop.owner = None
        try:
            yield
        finally:
            self._make_way(block_loop, sequence)
            block_loop.clear()
            try:
                self._load(sequence, kept, block_loop)
                block_loop.wait_again(waiting)
                self._own(block_loop, sequence)
            except BaseException:
                sequence.lost = sequence.lost or "what this session had read and said cannot be read back"
                raise
            finally:
                kept.close()

    def _make_way(self, block_loop: BlockLoop, sequence: SequenceState) -> None:
        """Swap out the owner of lent cells, which `sequence` gets back: to memory, if it has no room elsewhere."""
        present = _owner(block_loop)
        try:
            self._swap_out(block_loop, sequence)
        except SwapError:
            assert present is not None
            self.swap.hold(present, block_loop)
            block_loop.owner = None

    def release(self, sequence: SequenceState) -> None:
        """Free the state of a sequence that will not come back."""
        self.swap.forget(sequence)
        sequence.lost = "this session is closed"
        if sequence.is_loaded:
            sequence.note()
            sequence.block_loop.owner = None
            sequence.block_loop.log = sequence.block_loop.archive = None
        sequence.release()

    def close(self) -> None:
        """Forget all sequences, before the cells are freed."""
        for block_loop in self._block_loops:
            owner = _owner(block_loop)
            if owner is not None:
                owner.note()
                block_loop.owner = None
        self.swap.close()

    def _emptied_for(self, sequence: SequenceState) -> BlockLoop:
        """Return a block loop whose cells no sequence has; the least recently used sequence is swapped out for it."""
        free = [it for it in self._block_loops if it.owner is None]
        idle = [it for it in self._block_loops if it.owner not in self._holding]
        paused = [it for it in self._block_loops if it.owner not in self._at_work]
        block_loop = min(free or idle or paused, key=self._used.__getitem__)
        self._swap_out(block_loop, sequence)
        return block_loop

    def _swap_out(self, block_loop: BlockLoop, following: SequenceState) -> None:
        """Swap out the owner of cells to make way for `following`. An interrupt leaves the cells where they are."""
        present = _owner(block_loop)
        if present is not None:
            present.settle()
            self.forget_copy(present)
            present.note()
            if present.n_past > 0:
                present.is_in_checkpoint = present.checkpoint() is not None
                if not present.is_in_checkpoint:
                    self.swap.store(present, block_loop, following)
        block_loop.owner = None

    def forget_copy(self, present: SequenceState) -> None:
        """Free the copy of a loaded sequence's cells that an interrupted switch left."""
        present.is_in_checkpoint = False
        self.swap.forget(present)

    def _swap_in(self, sequence: SequenceState, block_loop: BlockLoop) -> None:
        """Load a sequence into free cells. Its copy stays until all of them are back."""
        snapshot = sequence.checkpoint() if sequence.is_in_checkpoint else self.swap.get(sequence)
        if snapshot is None and sequence.n_past > 0:
            sequence.lost = "what this session had read and said was lost while others had the cells"
            raise sequence.evicted()
        block_loop.clear()
        block_loop.pinned = sequence.pinned
        if isinstance(snapshot, StoredSnapshot):
            self._load(sequence, snapshot, block_loop)
        elif snapshot is not None:
            block_loop.restore(snapshot)
        self._own(block_loop, sequence)
        self.forget_copy(sequence)

    def _own(self, block_loop: BlockLoop, sequence: SequenceState) -> None:
        """Note that a sequence has the cells now, and notes every feed in its log."""
        block_loop.work = sequence.work
        sequence.block_loop = block_loop
        block_loop.owner = sequence
        sequence.use_log()
        self.note_use(block_loop)

    def note_use(self, block_loop: BlockLoop) -> None:
        """Note that a sequence uses its cells, so that others give up theirs first."""
        self._used[block_loop] = next(self._numbers)

    def _load(self, sequence: SequenceState, snapshot: StoredSnapshot, block_loop: BlockLoop) -> None:
        """Fill the cells from a file. Raises SwapError if it cannot be read, SessionEvictedError if it is damaged."""
        try:
            snapshot.load(block_loop)
        except (ArchiveError, SessionFileError) as error:
            block_loop.clear()
            why = "its temporary file was changed" if isinstance(error, SessionFileError) else str(error)
            sequence.lost = f"what this session had read and said cannot be read back: {why}"
            raise sequence.evicted() from error
        except OSError as error:
            block_loop.clear()
            raise SwapError(
                f"what this session had read and said cannot be read back now: {error.strerror or error}; try again"
            ) from error


def _owner(block_loop: BlockLoop) -> SequenceState | None:
    """Return the sequence that has the cells; None = no sequence has them."""
    owner = block_loop.owner
    assert owner is None or isinstance(owner, SequenceState)
    return owner
