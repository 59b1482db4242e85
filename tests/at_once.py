"""Sessions that work at once, in threads of their own, and the steps that they share."""

from __future__ import annotations

import threading
import time
from unittest import mock

from edgekv.binding.cache import Cache
from edgekv.sessions import steps

LIMIT_S = 100


def together(runtime, n, work):
    """Return what n threads return that each work with a session of their own, or what they raise.

    None begins before all have a session, and the first step waits until all have come: a thread that is late would
    find the others done.
    """
    results, ready = [None] * n, threading.Barrier(n)

    def run(i):
        try:
            with runtime.session() as session:
                ready.wait(LIMIT_S)
                results[i] = work(session, i)
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(n)]
    with mock.patch.object(Cache, "feed_together", staticmethod(_first_with(n, runtime))):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
    return results


def _first_with(n, runtime, limit_s=2):
    """Return a `Cache.feed_together` whose first call waits until n sessions have or want a turn, but not for ever."""
    feed, first, queue = Cache.feed_together, iter([True]), runtime._engine.turn_queue

    def feed_together(feeds):
        deadline = time.monotonic() + (limit_s if next(first, False) else 0)
        while len(queue.present()) + len(queue._waiting) < n and time.monotonic() < deadline:
            time.sleep(0.001)
        return feed(feeds)

    return feed_together


def alone(runtime, i, work):
    """Return what a session returns that works by itself."""
    with runtime.session() as session:
        return work(session, i)


def joined_steps(monkeypatch):
    """Return the sizes of the feeds of every step. Steps wait for each reply that pauses, so that all come together."""
    monkeypatch.setattr(steps, "SOON_S", 10.0 * LIMIT_S)
    sizes = []
    feed = Cache.feed_together

    def feed_together(feeds):
        sizes.append([len(tokens) for _, tokens, _ in feeds])
        return feed(feeds)

    monkeypatch.setattr(Cache, "feed_together", staticmethod(feed_together))
    return sizes
