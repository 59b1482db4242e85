"""Shards of requests for workers: requests with a common prefix go to one worker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Shard:
    """Requests with a common prefix that have no answer yet.

    n_shared: tokens of the prefix, which a worker reads before the first request
    waiting: numbers of requests, each with its tokens beside the prefix
    """

    n_shared: int
    waiting: deque[tuple[int, int]]

    @property
    def saved_by_stealing(self) -> int:
        """Tokens by which a shard ends sooner if another worker takes half. That worker reads the prefix, too."""
        return sum(n_tokens for _, n_tokens in self.waiting) // 2 - self.n_shared


class ShardQueue:
    """A queue that any thread takes requests from: shard by shard, in order.

    A worker that finds no further shard helps with one that others have begun, if that one ends sooner so.
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._lock = threading.Lock()
        self._untouched = deque(shard for shard in shards if shard.waiting)
        self._begun: list[Shard] = []
        self._of: dict[int, Shard] = {}

    def take(self, worker: int) -> int | None:
        """Return the number of a worker's next request; None = there is no work for it."""
        with self._lock:
            shard = self._of.get(worker)
            if shard is None or not shard.waiting:
                shard = self._next_shard()
                if shard is None:
                    return None
                self._of[worker] = shard
            return shard.waiting.popleft()[0]

    def _next_shard(self) -> Shard | None:
        if self._untouched:
            self._begun.append(self._untouched.popleft())
            return self._begun[-1]
        self._begun = [shard for shard in self._begun if shard.waiting]
        return max(
            (shard for shard in self._begun if shard.saved_by_stealing > 0),
            key=lambda shard: shard.saved_by_stealing,
            default=None,
        )
