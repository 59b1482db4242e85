"""A lock that tells who comes to it, so that a test can go on once another thread waits there."""

from __future__ import annotations

import threading


class Arrivals:
    """Stands for a lock. arrived: set when a thread comes for it, the first `n_before` apart"""

    def __init__(self, lock, n_before=1):
        self.arrived = threading.Event()
        self._lock, self._n_before = lock, n_before

    def __enter__(self):
        self._n_before -= 1
        if self._n_before < 0:
            self.arrived.set()
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
