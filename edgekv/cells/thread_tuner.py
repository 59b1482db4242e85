"""The thread tuner: fewer threads generate while other programs keep the processors busy.

Threads that share a token wait for each other some hundred times a token. If one of them waits for a processor, all do.
Fewer threads are then faster, and generate the same tokens: no sum depends on the number of threads.
"""

from __future__ import annotations

WINDOW = 8  # tokens between two looks
CROWDED = 0.8  # lowest CPU time / wall time of the feeding thread on an idle machine
BACKOFF, LONGEST_BACKOFF = 16, 256  # looks until another number is tried again; doubled after each failed trial


class ThreadTuner:
    """Chooses the number of threads that decode a token, by trial.

    now: current number of threads
    most: number that the user asked for
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._n_tokens = 0
        self._seconds = 0.0
        self._own_seconds = 0.0
        self._before: tuple[int, float] | None = None  # threads before a trial, and seconds of a window with them
        self._backoff_left = 0
        self._backoff = BACKOFF

    def decoded(self, seconds: float, own_seconds: float) -> bool:
        """Note the wall time of a token, and the CPU time of the feeding thread in it.

        Returns True if another number of threads decodes from now on.
        """
        self._n_tokens += 1
        self._seconds += seconds
        self._own_seconds += own_seconds
        if self._n_tokens < WINDOW:
            return False
        before = self.now
        self._look()
        self._n_tokens, self._seconds, self._own_seconds = 0, 0.0, 0.0
        return self.now != before

    def _look(self) -> None:
        if self._before is not None:
            self._judge(*self._before)
        elif self._backoff_left > 0:
            self._backoff_left -= 1
        elif self._own_seconds < CROWDED * self._seconds and self.now > 1:
            self._try(self.now // 2)
        elif self.now < self.most:
            self._try(min(2 * self.now, self.most))

    def _try(self, n: int) -> None:
        self._before = self.now, self._seconds
        self.now = n

    def _judge(self, n: int, seconds: float) -> None:
        """Keep the number on trial, or go back to n threads, which took `seconds`."""
        self._before = None
        if self._seconds < seconds:
            self._backoff = BACKOFF
        else:
            self.now = n
            self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)
        self._backoff_left = self._backoff
