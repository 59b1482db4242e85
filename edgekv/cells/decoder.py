"""The decoder of a context: feeds in batches, and fewer threads while other programs keep the processors busy.

Threads that share a token wait for each other some hundred times a token. If one of them waits for a processor, all do.
Fewer threads are then faster, and generate the same tokens: no sum depends on the number of threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgekv.binding.cache import Cache
from edgekv.options import Options

from .feeds import Feed

WINDOW = 8  # tokens between two looks
CROWDED = 0.8  # lowest CPU time / wall time of the feeding thread on an idle machine
BACKOFF, LONGEST_BACKOFF = 16, 256  # looks until another number is tried again; doubled after each failed trial


class Decoder:
    """Decodes feeds of the caches of one context, which all have a slot of it.

    n_steps: batches so far. Each overwrites the logits of the batch before
    is_shared: several conversations are being answered, so none of them makes drafts
    """

    def __init__(self, options: Options) -> None:
        self.n_steps = 0
        self.is_shared = False
        self._n_slots = options.parallel
        # A thread that waits for a device is idle on an idle machine, too, and tokens of several sessions are batches.
        self._threads = ThreadTuner(1 if options.gpu_layers or self._n_slots > 1 else options.n_threads)

    def decode(self, feeds: Sequence[Feed]) -> list[int]:
        """Decode feeds in one batch; returns the row of each one's logits. A draft or a probe comes alone.

        Raises what the cache raises.
        """
        first = feeds[0]
        self.n_steps += 1
        if first.part_ends is not None:
            first.cache.probe(first.tokens, first.part_ends)
            return [-1]
        if first.draft:
            first.cache.feed_draft(first.tokens[0], first.draft)
            return [0]
        if self._n_slots > 1:
            return Cache.feed_together([(feed.cache, feed.tokens, feed.want_logits) for feed in feeds])
        started, own_started = time.perf_counter(), time.thread_time()
        first.cache.feed(first.tokens, want_logits=first.want_logits)
        if len(first.tokens) == 1:
            seconds, own_seconds = time.perf_counter() - started, time.thread_time() - own_started
            if self._threads.decoded(seconds, own_seconds):
                first.cache.decode_with(self._threads.now)
        return [-1]


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
