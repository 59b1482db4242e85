"""Sessions that work at once, in threads of their own, and the steps that they share."""

from __future__ import annotations

import threading
from unittest import mock

from waiting import until

from edgekv.binding.cache import Cache
from edgekv.loop import slot_queue
from edgekv.loop.batch_scheduler import Scheduler

LIMIT_S = 100


def together(runtime, n, work, n_first=None):
    """Return what n threads return that each work with a session of their own, or what they raise.

    None begins before all have a session, and the first step waits until all have come, or n_first if the others wait
    for these: a thread that is late would find the others done.
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
    with mock.patch.object(Cache, "feed_together", staticmethod(_first_with(n_first or n, runtime))):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
    return results


def _first_with(n, runtime):
    """Return a `Cache.feed_together` whose first call waits until n sessions have or want a turn."""
    feed, first, channel = Cache.feed_together, iter([True]), runtime._engine.channel

    def feed_together(feeds):
        if next(first, False):
            n_here = len(channel.loop.engine.holding) + len(
                channel.loop._slots.waiting
            )  # the loop takes no message meanwhile
            until(lambda: n_here + channel._serving.inbox.qsize() >= n, "another session", LIMIT_S / 2)
        return feed(feeds)

    return feed_together


def alone(runtime, i, work):
    """Return what a session returns that works by itself."""
    with runtime.session() as session:
        return work(session, i)


def joined_steps(monkeypatch):
    """Return the sizes of the feeds of every step. Steps wait for each reply that pauses, so that all come together.

    They do so however long its last pause was, too. All steps count as equally long.
    """
    monkeypatch.setattr(slot_queue, "SOON_S", 10.0 * LIMIT_S)
    note = Scheduler.note
    monkeypatch.setattr(Scheduler, "note", lambda scheduler, batch, waiting, _: note(scheduler, batch, waiting, 1.0))
    sizes = []
    feed = Cache.feed_together

    def feed_together(feeds):
        sizes.append([len(tokens) for _, tokens, _ in feeds])
        return feed(feeds)

    monkeypatch.setattr(Cache, "feed_together", staticmethod(feed_together))
    return sizes
