"""How many threads generate: fewer while other programs keep the processors busy.

Threads that share a token wait for each other some hundred times for it. Where one of them has to wait for a processor,
all do. Fewer threads are then faster, and say the same: no sum depends on how many there are.
"""

from __future__ import annotations

WINDOW = 8  # tokens between two looks
CROWDED = 0.8  # of its time, the least for which the feeding thread has a processor on a machine of its own
BACKOFF, LONGEST_BACKOFF = (
    16,
    256,
)  # looks until another number is tried again; twice as many each time that it was no faster


class ThreadTuner:
    """Chooses how many threads decode a token, by trying. now: how many; most: those that were asked for"""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most
        self._n_tokens = 0
        self._seconds = 0.0
        self._own_seconds = 0.0
        self._before: tuple[int, float] | None = None  # a trial: how many there were, and seconds of a window with them
        self._backoff_left = 0
        self._backoff = BACKOFF

    def decoded(self, seconds: float, own_seconds: float) -> bool:
        """Note how long a token took, and how long of that the feeding thread had a processor.

        Returns whether another number of threads decodes from now on.
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
        """Keep the number that is tried, or go back to n, which took so long."""
        self._before = None
        if self._seconds < seconds:
            self._backoff = BACKOFF
        else:
            self.now = n
            self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)
        self._backoff_left = self._backoff
