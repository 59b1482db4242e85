"""Steps that sessions share: what they feed at the same time is decoded in one batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from edgekv.binding.cache import Cache
from edgekv.errors import EdgeKVError

from .turn_queue import SOON_S, Ticket, TurnQueue

MOST_PASSED = 4  # steps of other texts that a text waits for, although it waits longer than they do


@dataclass(eq=False, slots=True)
class _Feed:
    """Tokens of one session for the next step. row: of their logits; error: why they were not fed

    tickets: of the call that feeds
    part_ends: those of a probe; None = it is none
    n_passed: steps of other texts that went before this one, although it waited longer
    """

    cache: Cache
    tokens: Sequence[int]
    tickets: list[Ticket]
    want_logits: bool = False
    draft: Sequence[int] = ()
    part_ends: Sequence[int] | None = None
    n_passed: int = 0
    failed: bool = False  # together with others; it is tried again by itself
    done: bool = False
    row: int = -1
    error: EdgeKVError | None = None

    @property
    def is_alone(self) -> bool:
        """True if its step has nothing else, as of a block, which is then computed as it is without other sessions."""
        return len(self.tokens) > 1 or len(self.draft) > 0 or self.part_ends is not None or self.failed

    @property
    def n_read(self) -> int:
        """Tokens that its call had in such steps."""
        return sum(ticket.n_read for ticket in self.tickets)

    @property
    def has_waited_long(self) -> bool:
        """True if it lets no further step of another text pass."""
        return self.n_passed == MOST_PASSED

    @property
    def is_due(self) -> bool:
        """True if replies had as much time as the last such step of its call, or if it has waited long enough."""
        return self.has_waited_long or all(ticket.owed_s <= 0 for ticket in self.tickets)


class Steps:
    """Joins the feeds of the sessions that have a turn in a queue; the `Feeder` of an engine with several slots.

    A session that feeds waits until all others that are at work feed, too, or come to their end. One of the waiting
    threads then computes the step: a block or a probe of a text, or a token of every reply. A reply waits for one block
    at most. After its block a text waits until replies had as much time as that took, so a text and replies beside it
    have half of the time each, and several texts as much each as replies. Of the texts, the one goes first of which
    least was read, so a short prompt does not wait for the blocks of a long one. A text that waits lets at most
    MOST_PASSED steps of others pass.

    clock: gives seconds
    """

    def __init__(self, queue: TurnQueue, clock: Callable[[], float] = time.perf_counter) -> None:
        self._queue = queue
        self._clock = clock
        self._feeds: list[_Feed] = []  # those that wait, and those that are done, but their threads do not know yet
        self._was_alone = False  # the last step was one of a text
        self.n_steps = 0

    @property
    def is_alone(self) -> bool:
        """True if one session has a turn."""
        with self._queue.changed:
            return not self._queue.is_shared()

    def feed(self, cache: Cache, tokens: Sequence[int], want_logits: bool, draft: Sequence[int] = ()) -> int:
        """Feed tokens in a step; returns the row of their logits, which are there until this session feeds or pauses.

        A token with a draft has a step of its own, and the row is that of the token.

        Raises NativeError as `Cache.feed` does; other sessions' tokens are fed all the same. An exception that comes in
        from outside, such as a KeyboardInterrupt, leaves the tokens fed or not fed.
        """
        return self._decoded(_Feed(cache, tokens, self._tickets(), want_logits, draft)).row

    def probe(self, cache: Cache, tokens: Sequence[int], part_ends: Sequence[int]) -> None:
        """Decode a probe in a step of its own. Raises as `Cache.probe` does."""
        self._decoded(_Feed(cache, tokens, self._tickets(), part_ends=part_ends))

    def _tickets(self) -> list[Ticket]:
        """Return the tickets of this thread that have a turn."""
        me = threading.get_ident()
        with self._queue.changed:
            return [ticket for ticket in self._queue.present() if ticket.thread == me]

    def _decoded(self, feed: _Feed) -> _Feed:
        """Wait until a feed was decoded. Raises its error."""
        me = threading.get_ident()
        with self._queue.changed, self._in_step(feed, me):
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
    def _in_step(self, feed: _Feed, me: int) -> Iterator[None]:
        """Let others work, with a feed in the list of those that wait; at the end, this thread is at work again."""
        queue = self._queue
        self._feeds.append(feed)
        try:
            for ticket in feed.tickets:
                ticket.in_step = True
            queue.changed.notify_all()
            yield
        finally:
            interrupt: BaseException | None = None
            while queue.is_busy(me):  # a step may be under way that has this feed
                try:
                    queue.changed.wait()
                except BaseException as error:  # a second Ctrl-C must not leave the feed to a step of others
                    interrupt = error
            self._feeds.remove(feed)
            for ticket in feed.tickets:
                ticket.in_step = False
            queue.changed.notify_all()
            if interrupt is not None:
                raise interrupt

    def _wait_s(self, me: int) -> float | None:
        """Return how long to wait before the next step; 0 = it may begin, None = until something changes."""
        if not self._feeds or any(feed.done for feed in self._feeds):
            return None
        if self._queue.is_busy() or self._queue.is_awaited():
            return None
        paused = [p for p in self._queue.present() if p.thread is None and p.comes_back_soon and p.last_thread != me]
        return max([0.0, *(p.paused_since + SOON_S - time.monotonic() for p in paused)])

    def _step(self) -> None:
        """Decode what comes next in one batch. If that fails, each feed is tried by itself, so that one fails alone."""
        feeds = self._next()
        self._was_alone = feeds[0].is_alone
        self.n_steps += 1
        with self._timed(feeds), self._computing():
            try:
                self._decode(feeds)
            except EdgeKVError as error:
                for feed in feeds:
                    if len(feeds) > 1:
                        feed.failed = True
                    else:
                        feed.error = error
                        self._finish(feed)

    def _next(self) -> list[_Feed]:
        """Return the feeds of the next step, of those that wait."""
        texts = [feed for feed in self._feeds if feed.is_alone]
        replies = [feed for feed in self._feeds if not feed.is_alone]
        if not texts:
            return replies
        patient = [feed for feed in texts if feed.has_waited_long]
        first = patient[0] if patient else min(texts, key=lambda feed: feed.n_read)
        if replies and (self._was_alone or not first.is_due):
            return replies
        for feed in texts[: texts.index(first)]:
            feed.n_passed += 1
        return [first]

    @contextmanager
    def _timed(self, feeds: list[_Feed]) -> Iterator[None]:
        """Note the time of a step: the call of a text owes it to replies, whose steps pay it to all texts that wait."""
        begun = self._clock()
        try:
            yield
        finally:
            took = self._clock() - begun
            if self._was_alone:
                for ticket in feeds[0].tickets:
                    ticket.owed_s = took
            else:
                for ticket in {ticket for feed in self._feeds if feed.is_alone for ticket in feed.tickets}:
                    ticket.owed_s -= took

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
        first = feeds[0]
        if first.part_ends is not None:
            first.cache.probe(first.tokens, first.part_ends)
            self._finish(first)
            return
        before = [feed.cache.n_past for feed in feeds]
        end = 0
        for feed in feeds:
            end += len(feed.tokens)
            feed.row = end - 1
        try:
            if first.draft:
                first.cache.feed_draft(first.tokens[0], first.draft)
            else:
                Cache.feed_together([(feed.cache, feed.tokens, feed.want_logits) for feed in feeds])
        finally:
            for feed, n_past in zip(feeds, before, strict=True):
                if feed.cache.n_past > n_past:
                    self._finish(feed)

    def _finish(self, feed: _Feed) -> None:
        if not feed.done:
            for ticket in feed.tickets if feed.is_alone else ():
                ticket.n_read += len(feed.tokens)
            feed.done = True
