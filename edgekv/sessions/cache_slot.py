"""Cache ownership: one conversation is loaded in the cache, the others are swapped out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from edgekv.engine.block_loop import BlockLoop
from edgekv.errors import SessionFileError, SwapError

from .beginnings import Beginnings
from .sequence_state import SequenceState
from .stored_snapshot import StoredSnapshot
from .swap import SwapSpace

Filled = TypeVar("Filled")


class CacheSlot:
    """Gives the cells of a block loop to one sequence at a time.

    All but `release_later` is for one thread at a time.
    """

    def __init__(self, block_loop: BlockLoop, swap: SwapSpace) -> None:
        self.swap = swap
        self._block_loop = block_loop
        self._released: deque[SequenceState] = deque()  # sequences that will not come back

    @property
    def _current(self) -> SequenceState | None:
        """The sequence that has the cells; None = no sequence has them."""
        owner = self._block_loop.owner
        assert owner is None or isinstance(owner, SequenceState)
        return owner

    @property
    def beginnings(self) -> Beginnings:
        """The beginnings that sequences share."""
        return self.swap.beginnings

    def swap_in(self, sequence: SequenceState) -> None:
        """Load a sequence into the cells, as it left them. The current sequence is swapped out first.

        Raises SwapError if there is no room for that, and SessionEvictedError if the state of the sequence is gone.
        """
        if sequence.is_loaded:  # a sequence that is closed just now, too: its reply ends by itself
            return
        self.reap()
        started = time.perf_counter()
        if sequence.lost:
            raise sequence.evicted()
        self._swap_out(sequence)
        self._swap_in(sequence)
        sequence.work.switch_s += time.perf_counter() - started

    def claim_if_free(self, sequence: SequenceState) -> None:
        """Give a new sequence the cells if no sequence has them, or if they are empty."""
        self.reap()
        if self._current is None or self._block_loop.cache.n_past == 0:
            self._swap_out(sequence)
            self._swap_in(sequence)

    def claim(
        self, sequence: SequenceState, fill: Callable[[], Filled], instead_of: SequenceState | None = None
    ) -> Filled:
        """Give a new sequence the cells, which `fill` fills; returns its result. The current one is swapped out first.

        instead_of: a sequence that gives up its state if `fill` succeeds; if it has the cells, `fill` finds them so

        Raises the errors of `fill`, and SwapError if there is no room to swap out the current sequence. If cells of
        `instead_of` were overwritten by then, its state is lost.
        """
        self.reap()
        if instead_of is None or not instead_of.is_loaded:
            self._swap_out(sequence)
            self._block_loop.clear()
            filled = fill()
        else:
            instead_of.settle()
            instead_of.note()
            filled = self._replaced(instead_of, fill)
        self._block_loop.work = sequence.work
        self._block_loop.owner = sequence
        return filled

    def _replaced(self, present: SequenceState, fill: Callable[[], Filled]) -> Filled:
        """Fill the cells of the current sequence anew. Its state is lost as soon as the first cell changes."""
        cache = self._block_loop.cache
        n_overwritten = cache.n_overwritten
        try:
            present.lost = "another session was loaded instead of this one"
            self._block_loop.owner = None
            filled = fill()
        except BaseException:
            if cache.n_overwritten == n_overwritten:
                self._block_loop.owner = present
                present.lost = ""
            else:
                present.empty()
            raise
        present.empty()
        return filled

    def release_later(self, sequence: SequenceState) -> None:
        """Have a sequence forgotten at the next use. Call it from any thread, and in the midst of any call."""
        self._released.append(sequence)

    def reap(self) -> None:
        """Forget the released sequences."""
        while self._released:
            # it stays in the queue until all of it is forgotten, so an interrupt loses nothing
            sequence = self._released[0]
            self.swap.forget(sequence)
            sequence.lost = "this session is closed"
            if sequence.is_loaded:
                sequence.note()
                self._block_loop.owner = None
                self._block_loop.log = None
            sequence.release()
            self._released.popleft()

    def close(self) -> None:
        """Forget all sequences, before the cells are freed."""
        if self._current is not None:
            self._current.note()
            self._block_loop.owner = None
        self.swap.close()

    def _swap_out(self, following: SequenceState) -> None:
        """Swap out the current sequence to make way for `following`. An interrupt leaves the cells where they are."""
        present = self._current
        if present is not None:
            present.settle()
            self.forget_copy(present)
            present.note()
            if present.n_past > 0:
                present.is_in_checkpoint = present.checkpoint() is not None
                if not present.is_in_checkpoint:
                    self.swap.store(present, self._block_loop, following)
        self._block_loop.owner = None

    def forget_copy(self, present: SequenceState) -> None:
        """Free the copy of a loaded sequence's cells that an interrupted switch left."""
        present.is_in_checkpoint = False
        self.swap.forget(present)

    def _swap_in(self, sequence: SequenceState) -> None:
        """Load a sequence into the free cells. Its copy stays until all of them are back."""
        snapshot = sequence.checkpoint() if sequence.is_in_checkpoint else self.swap.get(sequence)
        if snapshot is None and sequence.n_past > 0:
            sequence.lost = "what this session had read and said was lost while others had the cells"
            raise sequence.evicted()
        self._block_loop.clear()
        self._block_loop.pinned = sequence.pinned
        if isinstance(snapshot, StoredSnapshot):
            self._load(sequence, snapshot)
        elif snapshot is not None:
            self._block_loop.restore(snapshot)
        self._block_loop.work = sequence.work
        self._block_loop.owner = sequence
        self.forget_copy(sequence)

    def _load(self, sequence: SequenceState, snapshot: StoredSnapshot) -> None:
        """Fill the cells from a file. Raises SwapError if it cannot be read, SessionEvictedError if it is damaged."""
        try:
            snapshot.load(self._block_loop)
        except SessionFileError as error:
            self._block_loop.clear()
            sequence.lost = "what this session had read and said cannot be read back: its temporary file was changed"
            raise sequence.evicted() from error
        except OSError as error:
            self._block_loop.clear()
            raise SwapError(
                f"what this session had read and said cannot be read back now: {error.strerror or error}; try again"
            ) from error
