"""Steps that sessions share: what they feed at the same time is decoded in one batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from edgekv.binding.cache import Cache
from edgekv.errors import EdgeKVError

from .turn_queue import SOON_S, Ticket, TurnQueue


@dataclass(eq=False, slots=True)
class _Feed:
    """Tokens of one session for the next step. row: of their logits; error: why they were not fed

    part_ends: those of a probe; None = it is none
    """

    cache: Cache
    tokens: Sequence[int]
    want_logits: bool = False
    part_ends: Sequence[int] | None = None
    failed: bool = False  # together with others; it is tried again by itself
    done: bool = False
    row: int = -1
    error: EdgeKVError | None = None

    @property
    def is_alone(self) -> bool:
        """True if its step has nothing else, as of a block, which is then computed as it is without other sessions."""
        return len(self.tokens) > 1 or self.part_ends is not None or self.failed


class Steps:
    """Joins the feeds of the sessions that have a turn in a queue; the `Feeder` of an engine with several slots.

    A session that feeds waits until all others that are at work feed, too, or come to their end. One of the waiting
    threads then computes the step: a block or a probe of a text, or a token of every reply, whichever waits longer. So
    texts that are read take turns with each other and with replies, and a reply waits for one block at most.
    """

    def __init__(self, queue: TurnQueue) -> None:
        self._queue = queue
        self._waiting: list[_Feed] = []
        self._resuming = 0  # feeds that are done, but their threads do not know yet

    def feed(self, cache: Cache, tokens: Sequence[int], want_logits: bool) -> int:
        """Feed tokens in a step; returns the row of their logits, which are there until this session feeds or pauses.

        Raises NativeError as `Cache.feed` does; other sessions' tokens are fed all the same. An exception that comes in
        from outside, such as a KeyboardInterrupt, leaves the tokens fed or not fed.
        """
        return self._decoded(_Feed(cache, tokens, want_logits)).row

    def probe(self, cache: Cache, tokens: Sequence[int], part_ends: Sequence[int]) -> None:
        """Decode a probe in a step of its own. Raises as `Cache.probe` does."""
        self._decoded(_Feed(cache, tokens, part_ends=part_ends))

    def _decoded(self, feed: _Feed) -> _Feed:
        """Wait until a feed was decoded. Raises its error."""
        me = threading.get_ident()
        with self._queue.changed:
            tickets = [ticket for ticket in self._queue.present() if ticket.thread == me]
            with self._in_step(feed, tickets, me):
                while not feed.done:
                    wait = self._wait_s(me)
                    if wait == 0:
                        self._step()
                    else:
                        self._queue.changed.wait(wait)
        if feed.error is not None:
            raise feed.error
        return feed

    @contextmanager
    def _in_step(self, feed: _Feed, tickets: list[Ticket], me: int) -> Iterator[None]:
        """Let others work, with a feed in the list of those that wait; at the end, this thread is at work again."""
        queue = self._queue
        try:
            self._waiting.append(feed)
            for ticket in tickets:
                ticket.in_step = True
            queue.changed.notify_all()
            yield
        finally:
            while queue.is_busy(me):  # a step may be under way that has this feed
                queue.changed.wait()
            if feed.done:
                self._resuming -= 1
            else:
                self._waiting.remove(feed)
            for ticket in tickets:
                ticket.in_step = False
            queue.changed.notify_all()

    def _wait_s(self, me: int) -> float | None:
        """Return how long to wait before the next step; 0 = it may begin, None = until something changes."""
        if not self._waiting or self._resuming or self._queue.is_busy() or self._queue.is_awaited():
            return None
        paused = [p for p in self._queue.present() if p.thread is None and p.comes_back_soon and p.last_thread != me]
        return max([0.0, *(p.paused_since + SOON_S - time.monotonic() for p in paused)])

    def _step(self) -> None:
        """Decode what waits in one batch. If that fails, each feed gets a step of its own, so that one fails alone."""
        oldest = self._waiting[0]
        feeds = [oldest] if oldest.is_alone else [feed for feed in self._waiting if not feed.is_alone]
        with self._computing():
            try:
                self._decode(feeds)
            except EdgeKVError as error:
                for feed in feeds:
                    if len(feeds) > 1:
                        feed.failed = True
                    else:
                        feed.error = error
                        self._finish(feed)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Keep others from working while the lock is released."""
        queue = self._queue
        queue.stepping = True
        queue.changed.release()
        try:
            yield
        finally:
            queue.changed.acquire()
            queue.stepping = False
            queue.changed.notify_all()

    def _decode(self, feeds: list[_Feed]) -> None:
        """Decode feeds together, and note those that got their cells, also if an interrupt comes next."""
        if (part_ends := feeds[0].part_ends) is not None:
            feeds[0].cache.probe(feeds[0].tokens, part_ends)
            self._finish(feeds[0])
            return
        before = [feed.cache.n_past for feed in feeds]
        end = 0
        for feed in feeds:
            end += len(feed.tokens)
            feed.row = end - 1
        try:
            Cache.feed_together([(feed.cache, feed.tokens, feed.want_logits) for feed in feeds])
        finally:
            for feed, n_past in zip(feeds, before, strict=True):
                if feed.cache.n_past > n_past:
                    self._finish(feed)

    def _finish(self, feed: _Feed) -> None:
        if not feed.done:
            feed.done = True
            self._waiting.remove(feed)
            self._resuming += 1
