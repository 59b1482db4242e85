"""The prefill: reads the prompt of one reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from edgekv.engine.block_loop import BlockLoop
from edgekv.engine.memory_guard import MemoryGuard
from edgekv.errors import CeilingExceededError
from edgekv.prompt.turns import Probe

from .request import Progress, ProgressCallback
from .stats import Stats


class Prefill:
    """Reads tokens until all are read, the reply is cancelled, or the process is found over its ceiling.

    stats: has the number of prompt tokens, and takes the number of tokens read and the time
    """

    def __init__(
        self,
        block_loop: BlockLoop,
        guard: MemoryGuard,
        cancelled: threading.Event,
        stats: Stats,
        progress: ProgressCallback | None,
    ) -> None:
        self._block_loop = block_loop
        self._guard = guard
        self._cancelled = cancelled
        self._stats = stats
        self._progress = progress
        self._n_read = 0
        self._exceeded: CeilingExceededError | None = None

    def read(
        self, tokens: Iterable[int], probe: Probe, *, want_logits: bool, observe: Callable[[int], None] | None = None
    ) -> None:
        """Read block by block, a whole prompt or its next part. Tokens that were read stay in the cells.

        observe: called with each token before it is fed (`BlockLoop.read`)
        """
        block_loop = self._block_loop
        block_loop.repositioning.expect(self._stats.prompt_tokens - self._n_read)
        started = time.perf_counter()
        try:
            block_loop.read(
                tokens,
                self._after_ubatch,
                probe.tokens,
                part_ends=probe.part_ends,
                want_logits=want_logits,
                observe=observe,
            )
        finally:
            self._stats.prefill_s += time.perf_counter() - started
            self._stats.read_tokens = self._n_read

    def may_reply(self) -> bool:
        """Return True if nothing ended the reading. Raises CeilingExceededError if the ceiling ended it."""
        if self._exceeded is not None:
            self._stats.finish_reason = "ceiling"
            raise self._exceeded
        if self._cancelled.is_set():
            self._stats.finish_reason = "cancelled"
            return False
        return True

    def _after_ubatch(self, n_tokens: int) -> bool:
        """Count the tokens read, and report the progress; returns True to read on."""
        self._n_read += n_tokens
        if self._progress is not None:
            block_loop = self._block_loop
            total, n_cells = self._stats.prompt_tokens, block_loop.cache.n_cells
            self._progress(Progress(self._n_read, total, n_cells, block_loop.budget))
        self._exceeded = self._guard.check()
        return self._exceeded is None and not self._cancelled.is_set()
