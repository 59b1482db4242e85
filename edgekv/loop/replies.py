"""The open replies of a loop: each works until it waits for a feed, and feeds are decoded in batches."""

from __future__ import annotations

from collections.abc import Callable, Generator

from edgekv.cells.feeds import RECALLING, Feed
from edgekv.conversations.conversation import Conversation
from edgekv.conversations.local_engine import LocalEngine
from edgekv.generation.request import Progress

from .batch_scheduler import Scheduler, WaitingFeed
from .loop_messages import Ended
from .open_reply import OpenReply
from .slot_queue import SlotQueue


class Replies:
    """Works on replies, one thing a step.

    While a client looks at the progress of its reply, nobody else is at work: the reply's logits are still to be used.
    The same holds between two heads of a recall.

    by_number: replies that have not told their client how they ended
    reporting: those whose progress is looked at, or that are recalling
    ended: called with a reply that is over
    """

    def __init__(
        self, engine: LocalEngine, slots: SlotQueue, clock: Callable[[], float], ended: Callable[[OpenReply], None]
    ) -> None:
        self.by_number: dict[int, OpenReply] = {}
        self.reporting: list[OpenReply] = []
        self._feeding: dict[WaitingFeed, OpenReply] = {}  # those whose feeds wait, in order of arrival
        self._engine = engine
        self._slots = slots
        self._clock = clock
        self._ended = ended
        self._scheduler = Scheduler() if engine.n_slots > 1 else None  # a single slot has one feed at a time

    @property
    def may_move(self) -> bool:
        """True if the ceiling may move: all replies at work have a feed that waits, or are recalling."""
        return all(reply.is_recalling for reply in self.reporting)

    @property
    def at_work(self) -> list[OpenReply]:
        """The replies whose feeds wait for a batch, and the one that is recalling."""
        return [*self._feeding.values(), *self.reporting]

    def of(self, conversation: Conversation) -> OpenReply | None:
        """Return the reply of a conversation that has not ended."""
        for reply in self.by_number.values():
            if reply.conversation is conversation and reply.ended is None:
                return reply
        return None

    def step(self) -> float | None:
        """Have a reply go on, or decode a batch; returns how many seconds to wait for a message first.

        None = until one comes; nothing was done then
        """
        for reply in self.reporting or self.by_number.values():
            if reply.is_ready:
                self._go_on(reply)
                return 0.0
        if self.reporting or not self._feeding:
            return None
        wait = 0.0 if self._engine.n_slots == 1 else self._slots.patience(self._feeding.values())
        if wait == 0:
            self._decode()
        return wait

    def finish(self, reply: OpenReply) -> None:
        """Bring a reply that has paused, and was cancelled, to its end; its client may still ask how it ended."""
        while reply.ended is None:
            if reply.feed is not None:
                self.close(reply)
            else:
                self._go_on(reply)

    def close(self, reply: OpenReply) -> None:
        """End a reply at once."""
        self.end(reply, close_events(reply))

    def end(self, reply: OpenReply, error: BaseException | None = None) -> None:
        """Note that a reply is over, and tell its client if it waits."""
        if reply.feed is not None:
            del self._feeding[reply.feed]
            reply.feed = None
        reply.is_ready = False
        if reply in self.reporting:
            self.reporting.remove(reply)
        reply.ended = Ended(reply.stats, error)
        self._slots.end(reply)
        if reply.answer is not None:
            del self.by_number[reply.number]
            say(reply, reply.ended)
            self._slots.note_answer(reply.client)
        self._ended(reply)

    def end_lost(self) -> None:
        """End the replies at work whose cells are lost."""
        for reply in self.at_work:
            if reply.conversation.state.lost:
                if reply.feed is not None:
                    del self._feeding[reply.feed]
                    reply.feed = None
                self._go_on(reply, None, reply.conversation.state.evicted())

    def _decode(self) -> None:
        """Decode the next feeds in one batch. If that fails, decode each feed by itself, so that one fails alone."""
        waiting = list(self._feeding)
        batch = waiting if self._scheduler is None else self._scheduler.next(waiting)
        before = [it.feed.cache.n_past for it in batch] if len(batch) > 1 else [-1]
        begun = self._clock()
        rows: list[int] = []
        error: BaseException | None = None
        try:
            rows = self._engine.loaded.decoder.decode([it.feed for it in batch])
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
        if reply in self.reporting:
            self.reporting.remove(reply)
        try:
            event = _next_event(reply, row, error)
        except StopIteration:
            self.end(reply)
        except BaseException as failure:
            self.end(reply, failure)
        else:
            self._note(reply, event)

    def _note(self, reply: OpenReply, event: object) -> None:
        """Note the feed or message that a reply waits for."""
        if isinstance(event, Feed):
            reply.feed = WaitingFeed(event, reply.share)
            self._feeding[reply.feed] = reply
        elif event is RECALLING:
            self.reporting.append(reply)
            reply.is_ready = reply.is_recalling = True
        elif isinstance(event, Progress):
            reply.conversation.state.note()
            self.reporting.append(reply)
            reply.is_ready = not reply.reports
            if reply.reports:
                say(reply, event)
        else:
            reply.paused_since = self._clock()
            say(reply, event)


def say(reply: OpenReply, answer: object) -> None:
    """Answer the client of a reply, if it waits."""
    told, reply.answer = reply.answer, None
    if told is not None:
        told(answer)


def close_events(reply: OpenReply) -> BaseException | None:
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
