"""Cache ownership: one conversation is loaded in the cache, the others are swapped out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from edgekv.engine.block_loop import BlockLoop

from .cache_client import CacheClient
from .snapshot import BlockLoopSnapshot
from .swap import SwapSpace

Filled = TypeVar("Filled")


class CacheSlot:
    """Gives the cells of a block loop to one client at a time. All but `release_later` is for one thread at a time."""

    def __init__(self, block_loop: BlockLoop, swap: SwapSpace) -> None:
        self.swap = swap
        self._block_loop = block_loop
        self._current: CacheClient | None = None
        self._released: deque[CacheClient] = deque()  # clients that will not come back

    def swap_in(self, client: CacheClient) -> None:
        """Load a client into the cells, as it left them. The current client is swapped out first.

        Raises SwapError if there is no room for that, and SessionEvictedError if the state of the client is gone.
        """
        if self._current is client:  # a client that is closed just now, too: its reply ends by itself
            return
        self.reap()
        started = time.perf_counter()
        if client.lost:
            raise client.evicted()
        self._swap_out(client)
        self._swap_in(client)
        client.work.switch_s += time.perf_counter() - started

    def holds(self, client: CacheClient) -> bool:
        """True if a client has the cells."""
        return self._current is client

    def claim_if_free(self, client: CacheClient) -> None:
        """Give a new client the cells if no client has them, or if they are empty."""
        self.reap()
        if self._current is None or self._block_loop.cache.n_past == 0:
            self._swap_out(client)
            self._swap_in(client)

    def claim(self, client: CacheClient, fill: Callable[[], Filled], instead_of: CacheClient | None = None) -> Filled:
        """Give a new client the cells, which `fill` fills; returns its result. The current client is swapped out first.

        instead_of: a client that gives up its state if `fill` succeeds; if it has the cells, `fill` finds them so

        Raises the errors of `fill`, and SwapError if there is no room to swap out the current client. If cells of
        `instead_of` were overwritten by then, its state is lost.
        """
        self.reap()
        if instead_of is None or self._current is not instead_of:
            self._swap_out(client)
            self._block_loop.clear()
            filled = fill()
        else:
            instead_of.settle()
            filled = self._replaced(self.note(instead_of), fill)
        self._block_loop.work = client.work
        self._current = client
        return filled

    def _replaced(self, present: CacheClient, fill: Callable[[], Filled]) -> Filled:
        """Fill the cells of the current client anew. Its state is lost as soon as the first cell changes."""
        cache = self._block_loop.cache
        n_overwritten = cache.n_overwritten
        try:
            present.lost = "another session was loaded instead of this one"
            self._current = None
            filled = fill()
        except BaseException:
            if cache.n_overwritten == n_overwritten:
                self._current = present
                present.lost = ""
            else:
                present.n_past = present.n_cells = 0
            raise
        present.n_past = present.n_cells = 0
        return filled

    def release_later(self, client: CacheClient) -> None:
        """Have a client forgotten at the next use. Call it from any thread, and in the midst of any call."""
        self._released.append(client)

    def reap(self) -> None:
        """Forget the released clients."""
        while self._released:
            client = self._released[
                0
            ]  # it stays in the queue until all of it is forgotten, so an interrupt loses nothing
            self.swap.forget(client)
            client.lost = "this session is closed"
            if self._current is client:
                self.note(client)
                self._current = None
                self._block_loop.log = None
            if client.release is not None:
                client.release()
            self._released.popleft()

    def close(self) -> None:
        """Forget all clients, before the cells are freed."""
        if self._current is not None:
            self.note(self._current)
            self._current = None
        self.swap.close()

    def figures(self, client: CacheClient) -> tuple[int, int]:
        """Return the tokens that a client has read and generated, and its cells per head. Call it from any thread."""
        if self._current is client:
            cache = self._block_loop.cache
            found = cache.n_past, cache.n_cells
            if self._current is client:  # no other client took the cells meanwhile
                return found
        return client.n_past, client.n_cells

    def note(self, client: CacheClient) -> CacheClient:
        """Return the client, with its counters updated."""
        if self._current is client:
            cache = self._block_loop.cache
            client.work, client.n_past, client.n_cells = self._block_loop.work, cache.n_past, cache.n_cells
        return client

    def _swap_out(self, following: CacheClient) -> None:
        """Swap out the current client to make way for `following`. An interrupt leaves the cells where they are."""
        present = self._current
        if present is not None:
            present.settle()
            self.forget_copy(present)
            if self.note(present).n_past > 0:
                present.is_in_checkpoint = present.checkpoint() is not None
                if not present.is_in_checkpoint:
                    self._store(present, following)
        self._current = None

    def forget_copy(self, present: CacheClient) -> None:
        """Free the copy of a loaded client's cells that an interrupted switch left."""
        present.is_in_checkpoint = False
        self.swap.forget(present)

    def _store(self, present: CacheClient, following: CacheClient) -> None:
        """Copy the cells to memory or to the disk."""
        self.swap.make_room(self._block_loop.snapshot_bytes, keep=following)
        self.swap.put(present, self._block_loop.snapshot())

    def _swap_in(self, client: CacheClient) -> None:
        """Load a client into the free cells. Its copy stays until all of them are back."""
        snapshot = client.checkpoint() if client.is_in_checkpoint else self.swap.get(client)
        if snapshot is None and client.n_past > 0:
            client.lost = "what this session had read and said was lost while others had the cells"
            raise client.evicted()
        self._block_loop.clear()
        self._block_loop.pinned = client.pinned
        if snapshot is not None:
            self._restore(client, snapshot)
        self._block_loop.work = client.work
        self._current = client
        self.forget_copy(client)

    def _restore(self, client: CacheClient, snapshot: BlockLoopSnapshot) -> None:
        """Fill the cells from a snapshot. Raises SessionEvictedError if its file cannot be read."""
        try:
            self._block_loop.restore(snapshot)
        except OSError as error:
            self._block_loop.clear()
            client.lost = f"what this session had read and said cannot be read back: {error.strerror or error}"
            raise client.evicted() from error
