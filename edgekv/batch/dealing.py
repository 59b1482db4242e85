"""Who answers which request: those that begin alike go to one worker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Pile:
    """Requests that begin alike and have no answer yet.

    n_shared: tokens that they have in common, which a worker reads before the first of them
    waiting: their numbers, and the tokens that each takes besides
    """

    n_shared: int
    waiting: deque[tuple[int, int]]

    @property
    def saved_by_help(self) -> int:
        """Tokens that its worker has less to do if another one takes half, which has to read the beginning too."""
        return sum(n_tokens for _, n_tokens in self.waiting) // 2 - self.n_shared


class Dealer:
    """Deals requests out to workers, from any thread: pile by pile, in their order.

    A worker that finds no further pile helps with one that others have begun, if that is sooner done so.
    """

    def __init__(self, piles: Iterable[Pile]) -> None:
        self._lock = threading.Lock()
        self._untouched = deque(pile for pile in piles if pile.waiting)
        self._begun: list[Pile] = []
        self._of: dict[int, Pile] = {}

    def take(self, worker: int) -> int | None:
        """The number of the request that a worker answers next; None = there is no work for it."""
        with self._lock:
            pile = self._of.get(worker)
            if pile is None or not pile.waiting:
                pile = self._next_pile()
                if pile is None:
                    return None
                self._of[worker] = pile
            return pile.waiting.popleft()[0]

    def _next_pile(self) -> Pile | None:
        if self._untouched:
            self._begun.append(self._untouched.popleft())
            return self._begun[-1]
        self._begun = [pile for pile in self._begun if pile.waiting]
        return max(
            (pile for pile in self._begun if pile.saved_by_help > 0), key=lambda pile: pile.saved_by_help, default=None
        )
