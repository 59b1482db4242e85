"""The reading of one prompt: block by block, with its progress, until it ends, is cancelled, or meets the ceiling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgekv.cells.feeds import Feeding
from edgekv.cells.memory_guard import MemoryGuard
from edgekv.errors import CeilingExceededError
from edgekv.generation.request import Progress
from edgekv.generation.stats import Stats
from edgekv.prompt.turns import Probe

from .sequence_state import SequenceState

RECALL_STEPS = 16  # times that the progress of a recall is reported, at most


@dataclass
class Prefill:
    """Reads the prompt of one reply until all is read, it is cancelled, or the process is found over its ceiling.

    stats: has the number of prompt tokens, and takes the number of tokens read and the time
    observe: called with each token before it is fed (`BlockLoop.reading`)
    """

    state: SequenceState
    guard: MemoryGuard
    cancelled: threading.Event
    stats: Stats
    observe: Callable[[int], None] | None
    n_read: int = 0
    recall_step: int = -1
    exceeded: CeilingExceededError | None = None

    def read(self, tokens: Iterable[int], probe: Probe, *, want_logits: bool) -> Feeding[None]:
        """Read block by block, a whole prompt or its next part. Tokens that were read stay in the cells."""
        block_loop, stats = self.state.block_loop, self.stats
        block_loop.repositioning.expect(stats.prompt_tokens - self.n_read)
        started = time.perf_counter()
        try:
            yield from block_loop.reading(
                tokens,
                self._after_ubatch,
                probe.tokens,
                part_ends=probe.part_ends,
                want_logits=want_logits,
                observe=self.observe,
                while_recalling=self._between_heads,
            )
        finally:
            stats.prefill_s += time.perf_counter() - started
            stats.read_tokens = self.n_read

    def may_reply(self) -> bool:
        """Return True if nothing ended the reading. Raises CeilingExceededError if the ceiling ended it."""
        if self.exceeded is not None:
            self.stats.finish_reason = "ceiling"
            raise self.exceeded
        if self.cancelled.is_set():
            self.stats.finish_reason = "cancelled"
            return False
        return True

    def _after_ubatch(self, n_tokens: int) -> Feeding[bool]:
        """Count the tokens read, and report the progress; returns True to read on."""
        self.n_read += n_tokens
        self.state.note()
        return (yield from self._report())

    def _between_heads(self, n_scanned: int, n_heads: int) -> Feeding[bool]:
        """Report the progress of a recall, RECALL_STEPS times in all; returns True to scan on."""
        step = n_scanned * RECALL_STEPS // n_heads
        if step == self.recall_step:
            return not self.cancelled.is_set()
        self.recall_step = step
        return (yield from self._report(n_scanned, n_heads))

    def _report(self, n_scanned: int = 0, n_heads: int = 0) -> Feeding[bool]:
        """Yield the progress, and check the ceiling; returns True to go on."""
        total, budget = self.stats.prompt_tokens, self.state.block_loop.budget
        yield Progress(self.n_read, total, self.state.n_cells, budget, n_scanned, n_heads)
        self.exceeded = self.guard.check()
        return self.exceeded is None and not self.cancelled.is_set()
