"""The open replies of a loop: each works until it waits for a feed, and feeds are decoded in batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable

from edgekv.cells.feeds import RECALLING, Feed
from edgekv.conversations.conversation import Conversation
from edgekv.conversations.local_engine import LocalEngine
from edgekv.errors import SessionError
from edgekv.generation.request import Progress

from .batch_scheduler import Scheduler, WaitingFeed
from .ceiling_moves import CeilingMoves
from .loop_messages import CLOSED, Ended, Next, Raised
from .open_reply import OpenReply, Post
from .slot_queue import SlotQueue, Waiting


class Replies:
    """Works on the replies of an engine, one thing a step. `Loop` takes all messages but `Next`.

    As many conversations as there are slots *hold* one: their replies keep their cells while they are iterated. All
    others wait in order of arrival. They pass a reply whose client asked for no piece for IDLE_S, or whose client waits
    itself. A reply that was passed waits again, behind the others.

    While a client looks at the progress of its reply, nobody else is at work: the reply's logits are still to be used.
    The same holds between two heads of a recall.

    clock: gives seconds
    """

    def __init__(self, engine: LocalEngine, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine = engine
        self._conversations: dict[int, Conversation] = {}
        self._replies: dict[int, OpenReply] = {}  # those that have not told their client how they ended, by number
        self._reporting: list[OpenReply] = []  # those whose progress is looked at, or that are recalling
        self._feeding: dict[WaitingFeed, OpenReply] = {}  # those whose feeds wait, in order of arrival
        self._slots = SlotQueue(engine, clock)
        self._moves = CeilingMoves(engine)
        self._stop: Post | None = None
        self._clock = clock
        self._scheduler = Scheduler() if engine.n_slots > 1 else None  # a single slot has one feed at a time

    def take(self, post: Post) -> None:
        """Take a message. It is answered now, or in one of the next steps."""
        if self.engine.n_slots > 1:
            self._slots.note_request(post.client)
        try:
            if self.engine.closed:
                raise SessionError(CLOSED)
            if isinstance(post.message, Next):
                self._take_next(post, post.message.number)
            else:
                self._take(post)
        except BaseException as error:  # any error is the client's, and the loop goes on
            post.answer(Raised(error))

    def _take(self, post: Post) -> None:
        """Take any other message. Raises the error that is its answer."""
        raise NotImplementedError

    def _take_next(self, post: Post, number: int) -> None:
        reply = self._replies.get(number)
        if reply is None or reply.ended is not None:
            self._replies.pop(number, None)
            post.answer(Ended(None) if reply is None else reply.ended)
            return
        if self._reporting:
            self._refuse_within(reply.conversation, post.client)
        reply.answer, reply.client = post.answer, post.client
        if self.engine.n_slots > 1 and reply not in self._reporting:
            self._slots.note_return(reply)
        if reply.conversation in self._slots.holders or reply.conversation.cancelled.is_set():
            reply.is_ready = True
        else:
            self._enter(reply, post)

    def _refuse_within(self, conversation: Conversation | None, client: Hashable) -> None:
        """Raise SessionError if the client is in the midst of a call of another conversation."""
        for reply in self._reporting:
            if reply.client == client and reply.conversation is not conversation:
                raise SessionError(
                    "another session is at work in this very call, such as one with a `progress`; use this one after it"
                )

    def _enter(self, reply: OpenReply, post: Post) -> None:
        """Have a reply go on once it holds a slot."""

        def enter() -> None:
            reply.is_ready = True
            self._slots.give(reply)

        self._slots.waiting.append(Waiting(reply.conversation, reply, post, enter))

    # ---- steps ----

    def step(self) -> float | None:
        """Do the next thing that can be done; returns how many seconds to wait for a message. None = until one comes"""
        if self._stop is not None and self._may_stop(self._stop):
            self.close()
            return None
        if self._moves.waiting and all(reply.is_recalling for reply in self._reporting):
            self._move_ceiling()
        waits = bool(self._slots.waiting) and not self._reporting
        if waits:
            self._slots.admit()
        wait = self._work()
        if wait is None and waits:
            wait = self._slots.until_one_is_passed()
        return wait

    def _work(self) -> float | None:
        """Have a reply go on, or decode a batch; returns how many seconds to wait for a message first.

        None = until one comes; nothing was done then
        """
        for reply in self._reporting or self._replies.values():
            if reply.is_ready:
                self._go_on(reply)
                return 0.0
        if self._reporting or not self._feeding:
            return None
        wait = 0.0 if self.engine.n_slots == 1 else self._slots.patience(self._feeding.values())
        if wait == 0:
            self._decode()
        return wait

    def _decode(self) -> None:
        """Decode the next feeds in one batch. If that fails, decode each feed by itself, so that one fails alone."""
        waiting = list(self._feeding)
        batch = waiting if self._scheduler is None else self._scheduler.next(waiting)
        before = [it.feed.cache.n_past for it in batch] if len(batch) > 1 else [-1]
        begun = self._clock()
        rows: list[int] = []
        error: BaseException | None = None
        try:
            rows = self.engine.loaded.decoder.decode([it.feed for it in batch])
        except BaseException as failure:
            error = failure
        if self._scheduler is not None:
            self._scheduler.note(batch, waiting, self._clock() - begun)
        for i, it in enumerate(batch):
            if error is not None and it.feed.cache.n_past == before[i]:
                it.has_failed = True
                continue
            reply = self._feeding.pop(it)
            reply.feed = None
            self._go_on(reply, None if error else rows[i], error)

    def _go_on(self, reply: OpenReply, row: int | None = None, error: BaseException | None = None) -> None:
        """Have a reply work until it waits for something. row, error: of its feed"""
        reply.is_ready = reply.is_recalling = False
        if reply in self._reporting:
            self._reporting.remove(reply)
        try:
            event = _next_event(reply, row, error)
        except StopIteration:
            self._end(reply)
        except BaseException as failure:
            self._end(reply, failure)
        else:
            self._note(reply, event)

    def _note(self, reply: OpenReply, event: object) -> None:
        """Note the feed or message that a reply waits for."""
        if isinstance(event, Feed):
            reply.feed = WaitingFeed(event, reply.share)
            self._feeding[reply.feed] = reply
        elif event is RECALLING:
            self._reporting.append(reply)
            reply.is_ready = reply.is_recalling = True
        elif isinstance(event, Progress):
            reply.conversation.state.note()
            self._reporting.append(reply)
            reply.is_ready = not reply.reports
            if reply.reports:
                _say(reply, event)
        else:
            reply.paused_since = self._clock()
            _say(reply, event)

    def _move_ceiling(self) -> None:
        """Go on with moves of the ceiling, as far as they can go now. A reply whose cells they lost ends."""
        at_work = [*self._feeding.values(), *self._reporting]
        self.engine.at_work.update(reply.conversation.state for reply in at_work)
        for answered in self._moves.go_on():
            self._slots.note_answer(answered.client)
        self.engine.at_work.clear()
        for reply in at_work:
            if reply.conversation.state.lost:
                self._forget_feed(reply)
                self._go_on(reply, None, reply.conversation.state.evicted())

    # ---- ends ----

    def _of(self, conversation: Conversation) -> OpenReply | None:
        """Return the reply of a conversation that has not ended."""
        for reply in self._replies.values():
            if reply.conversation is conversation and reply.ended is None:
                return reply
        return None

    def _finish(self, reply: OpenReply) -> None:
        """Bring a reply that has paused, and was cancelled, to its end; its client may still ask how it ended."""
        while reply.ended is None:
            if reply.feed is not None:
                self._end(reply, _close_events(reply))
            else:
                self._go_on(reply)

    def _abort(self, number: int) -> Ended:
        """End a reply at once; returns how it ended."""
        reply = self._replies.get(number)
        if reply is None:
            return Ended(None)
        if reply.ended is None:
            reply.answer = None
            self._end(reply, _close_events(reply))
        del self._replies[number]
        return reply.ended or Ended(None)

    def _end(self, reply: OpenReply, error: BaseException | None = None) -> None:
        """Note that a reply is over, and tell its client if it waits. If its conversation was closed, forget that."""
        self._forget_feed(reply)
        reply.is_ready = False
        if reply in self._reporting:
            self._reporting.remove(reply)
        reply.ended = Ended(reply.stats, error)
        self._slots.end(reply)
        if reply.answer is not None:
            del self._replies[reply.number]
            _say(reply, reply.ended)
            self._slots.note_answer(reply.client)
        if reply.conversation not in self._conversations.values():
            reply.conversation.close()

    def _forget_feed(self, reply: OpenReply) -> None:
        if reply.feed is not None:
            del self._feeding[reply.feed]
            reply.feed = None

    def _may_stop(self, stop: Post) -> bool:
        """Return True if nobody is at work, beside a client that asks for the end while it looks at the progress."""
        at_work = [it for it in self._replies.values() if it.is_ready or it.feed is not None]
        return not at_work and all(it.client == stop.client for it in self._reporting)

    def close(self) -> None:
        """Free everything. Replies that are open end, and who waits is refused."""
        self._moves.refuse()
        self.engine.close()
        for reply in self._replies.values():
            _close_events(reply)
            _say(reply, Raised(SessionError(CLOSED)))
        if self._stop is not None:
            self._stop.answer(None)


def _say(reply: OpenReply, answer: object) -> None:
    """Answer the client of a reply, if it waits."""
    told, reply.answer = reply.answer, None
    if told is not None:
        told(answer)


def _close_events(reply: OpenReply) -> BaseException | None:
    """Close the events of a reply; returns the error of that, or None."""
    try:
        reply.events.close()
    except BaseException as error:
        return error
    return None


def _next_event(reply: OpenReply, row: int | None, error: BaseException | None) -> object:
    """Return the next event of a reply. Pieces without text and tokens are left out."""
    events: Generator[object, int | None, None] = reply.events  # type: ignore[assignment]
    event = events.send(row) if error is None else events.throw(error)
    while isinstance(event, str) and not event and not getattr(event, "packed", b""):
        event = next(events)
    return event
