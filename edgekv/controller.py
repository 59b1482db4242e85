"""The block loop: feed a block, score, compact to the budget, repeat; the same in prefill and in generation."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .cache import Cache
from .options import Options


@dataclass(slots=True)
class Work:
    """What a controller has done so far; times in seconds."""

    evictions: int = 0
    evicted_cells: int = 0
    score_s: float = 0.0
    compact_s: float = 0.0
    decode_s: float = 0.0


class Controller:
    """Keeps a cache within `budget` cells per head, plus one block of spare cells (KeyDiff eq. 6).

    `pinned` are position ranges [p0, p1) that are never evicted.
    """

    def __init__(self, cache: Cache, options: Options, budget: int) -> None:
        self.cache = cache
        self.budget = budget
        self.pinned: tuple[tuple[int, int], ...] = ()
        self.work = Work()
        self._options = options

    def clear(self) -> None:
        """Start over with an empty cache and fresh counters."""
        self.cache.clear()
        self.pinned = ()
        self.work = Work()

    def read(self, tokens: Iterable[int], after_block: Callable[[int], bool]) -> bool:
        """Read tokens block by block, and compute logits for the last one.

        `after_block(n)` is told how many tokens the block held, and stops the reading by returning False: what was
        read until then stays in the cache. Returns whether everything was read.
        """
        blocks = _blocks(tokens, self._options.block)
        block = next(blocks, None)
        while block is not None:
            following = next(blocks, None)
            self._feed(block, spare=self._options.block, want_logits=following is None)
            self._compact()
            if not after_block(len(block)):
                return following is None
            block = following
        return True

    def step(self, token: int) -> None:
        """Feed one generated token, and compute its logits; evicts once `evict_every` spare cells are filled."""
        self._feed([token], spare=self._options.spare_cells, want_logits=True)

    def _feed(self, tokens: list[int], *, spare: int, want_logits: bool) -> None:
        if self.cache.n_cells + len(tokens) > self.budget + spare:
            self._compact()
        started = time.perf_counter()
        self.cache.feed(tokens, want_logits=want_logits)
        self.work.decode_s += time.perf_counter() - started

    def _compact(self) -> None:
        if self.cache.n_cells <= self.budget:
            return
        result = self.cache.compact(
            self._options.parsed_policy,
            self.budget,
            n_sink=self._options.sinks,
            recent=self._options.recent_cells(self.budget),
            pinned=self.pinned,
        )
        self.work.evictions += 1
        self.work.evicted_cells += result.n_evicted
        self.work.score_s += result.score_us / 1e6
        self.work.compact_s += result.move_us / 1e6


def _blocks(tokens: Iterable[int], size: int) -> Iterator[list[int]]:
    """Cut tokens into lists of `size`, the last one shorter."""
    iterator = iter(tokens)
    while block := list(itertools.islice(iterator, size)):
        yield block
