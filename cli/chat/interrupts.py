"""Ctrl-C in a chat: once cancels the reply, twice within a second leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

TWICE_S = 1.0


class Interrupts:
    """Remembers when Ctrl-C came last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def is_second(self) -> bool:
        """Note a Ctrl-C; return True if another came less than a second before."""
        now, last = self._clock(), self._last
        self._last = now
        return last is not None and now - last < TWICE_S
