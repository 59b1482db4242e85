"""The loop: one thread that owns a loaded model and its cells, takes messages, and decodes what can run in batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable

from edgekv.cells.feeds import Feed
from edgekv.conversations.conversation import Conversation
from edgekv.conversations.local_engine import LocalEngine
from edgekv.errors import SessionError
from edgekv.generation.request import Progress

from .batch_scheduler import Scheduler, WaitingFeed
from .loop_messages import (
    CLOSED,
    OF_ALL_CELLS,
    OF_IDLE,
    WITH_CELLS,
    Abort,
    Call,
    Cancel,
    Close,
    Ended,
    LoadConversation,
    NewConversation,
    Next,
    Raised,
    Reply,
    Stop,
)
from .open_reply import OpenReply, Post
from .slot_turns import InLine, Turns


class Loop:
    """Owns an engine. All of it is for one thread; `take` and `step` are called by turns (`serve`).

    As many conversations as there are slots have a *turn*: their replies keep their cells while they are iterated. All
    others wait in order of arrival. They pass a reply whose client asked for no piece for IDLE_S, or whose client waits
    itself. A reply that was passed waits again, behind the others. A call has a turn for its own length.

    While a client looks at the progress of its reply, nobody else is at work: the reply's logits are still to be used.

    clock: gives seconds
    """

    def __init__(self, engine: LocalEngine, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine = engine
        self._clock = clock
        self._scheduler = Scheduler()
        self._conversations: dict[int, Conversation] = {}
        self._replies: dict[int, OpenReply] = {}
        self._feeding: list[OpenReply] = []  # replies whose feeds wait, in order of arrival
        self._turns = Turns(engine, clock)
        self._reporting: list[OpenReply] = []  # replies whose progress is looked at, and whose logits are to be used
        self._closing: set[Conversation] = set()  # closed in the midst of a reply
        self._stop: Post | None = None

    def conversation(self, number: int) -> Conversation:
        """Return an open conversation. Raises SessionError."""
        if number not in self._conversations:
            raise SessionError(CLOSED)
        return self._conversations[number]

    def take(self, post: Post) -> None:
        """Take a message. It is answered now, or in one of the next steps."""
        self._turns.note_request(post.client)
        try:
            self._take(post)
        except BaseException as error:  # whatever it is, it is for the client, and the loop goes on
            post.answer(Raised(error))

    def step(self) -> float | None:
        """Do the next thing that can be done; returns how many seconds to wait for a message. None = until one comes"""
        if self._stop is not None and self._may_stop(self._stop):
            self.close()
            return None
        if not self._reporting:
            self._turns.admit(is_idle=not self._feeding)
        ready = next((it for it in self._reporting or self._replies.values() if it.is_ready), None)
        if ready is not None:
            self._go_on(ready)
            return 0.0
        if self._reporting:
            return None
        if not self._feeding:
            return self._turns.until_one_is_passed()
        wait = self._turns.patience(self._feeding)
        if wait == 0:
            self._decode()
        return wait

    # ---- messages ----

    def _take(self, post: Post) -> None:
        message = post.message
        if self.engine.closed or (self._stop is not None and not isinstance(message, (Next, Abort, Stop))):
            raise SessionError(CLOSED)
        if isinstance(message, Next):
            self._take_next(post, message.number)
        elif isinstance(message, Reply):
            self._take_reply(post, message)
        elif isinstance(message, LoadConversation):
            replaced = None if message.instead_of is None else self.conversation(message.instead_of)
            self._with_turn(replaced, post, lambda: self._load(message, replaced))
        elif isinstance(message, Call) and message.name in WITH_CELLS and message.conversation is not None:
            conversation = self.conversation(message.conversation)
            self._with_turn(conversation, post, lambda: self._call(message))
        elif isinstance(message, Call) and message.name in OF_ALL_CELLS:
            self._with_turn(None, post, lambda: self._call(message))
        elif isinstance(message, Stop):
            self._take_stop(post)
        else:
            post.answer(self._done(message))

    def _done(self, message: object) -> object:
        """Return the answer to a message that needs no turn."""
        if isinstance(message, Abort):
            return self._abort(message.number)
        if isinstance(message, Call):
            return self._call(message)
        if isinstance(message, NewConversation):
            self._conversations[message.number] = self.engine.new_conversation(message.system, message.logging)
        elif isinstance(message, Cancel):
            if message.conversation in self._conversations:
                self._cancel(self._conversations[message.conversation])
        elif isinstance(message, Close):
            self._close(message.number)
        else:
            raise AssertionError(f"{message!r} is no message")
        return None

    def _call(self, message: Call) -> object:
        if message.conversation is None:
            owner: object = self.engine
        else:
            owner = conversation = self.conversation(message.conversation)
            forgotten = self._reply_of(conversation)
            if message.name in OF_IDLE and forgotten is not None:
                self._finish(forgotten)
        found = getattr(owner, message.name)
        return found(*message.arguments) if callable(found) else found

    def _load(self, message: LoadConversation, replaced: Conversation | None) -> None:
        if replaced is not None and (forgotten := self._reply_of(replaced)) is not None:
            self._finish(forgotten)
        self._conversations[message.number] = self.engine.load_conversation(
            message.path, replaced, keeps_log=message.keeps_log
        )

    def _take_reply(self, post: Post, message: Reply) -> None:
        conversation = self.conversation(message.conversation)
        self._refuse_within(conversation, post.client)
        if (forgotten := self._reply_of(conversation)) is not None:
            self._finish(forgotten)
        conversation.cancelled.clear()
        events = conversation.reply(message.request, message.stats)
        reply = OpenReply(
            message.number, conversation, message.stats, events, message.reports, post.client, post.answer
        )
        self._replies[message.number] = reply
        self._enter(reply, post)

    def _take_next(self, post: Post, number: int) -> None:
        reply = self._replies.get(number)
        if reply is None or reply.ended is not None:
            self._replies.pop(number, None)
            post.answer(Ended(None) if reply is None else reply.ended)
            return
        self._refuse_within(reply.conversation, post.client)
        reply.answer, reply.client = post.answer, post.client
        if reply not in self._reporting:
            self._turns.note_return(reply)
        if self._turns.has(reply.conversation) or reply.conversation.cancelled.is_set():
            reply.is_ready = True
        else:
            self._enter(reply, post)

    def _abort(self, number: int) -> Ended:
        reply = self._replies.get(number)
        if reply is None:
            return Ended(None)
        if reply.ended is None:
            reply.answer = None
            self._end_reply(reply, _closed(reply))
        del self._replies[number]
        return reply.ended or Ended(None)

    def _cancel(self, conversation: Conversation) -> None:
        """Have the reply of a conversation end by itself. One that waits for its turn needs none for that."""
        conversation.cancelled.set()
        waits = self._turns.in_line(conversation)
        if waits is None or waits.reply is None:
            return
        if isinstance(waits.post.message, Next):
            waits.reply.is_ready = True
        else:  # it has not begun
            waits.reply.stats.finish_reason = "cancelled"
            self._end_reply(waits.reply, None)

    def _close(self, number: int) -> None:
        conversation = self._conversations.pop(number, None)
        if conversation is None:  # this was asked before
            return
        self._cancel(conversation)
        reply = self._reply_of(conversation)
        if reply is not None and reply.is_paused and reply not in self._reporting:
            self._finish(reply)
        if self._reply_of(conversation) is None:
            self._forget(conversation)
        else:
            self._closing.add(conversation)

    def _forget(self, conversation: Conversation) -> None:
        self._closing.discard(conversation)
        conversation.close()
        self.engine.reap()

    # ---- turns ----

    def _reply_of(self, conversation: Conversation) -> OpenReply | None:
        """Return the reply of a conversation that has not ended."""
        mine = (it for it in self._replies.values() if it.conversation is conversation and it.ended is None)
        return next(mine, None)

    def _refuse_within(self, conversation: Conversation | None, client: Hashable) -> None:
        """Raise SessionError if the client is in the midst of a call of another conversation."""
        if any(it.client == client and it.conversation is not conversation for it in self._reporting):
            raise SessionError(
                "another session is at work in this very call, such as one with a `progress`; use this one after it"
            )

    def _with_turn(self, conversation: Conversation | None, post: Post, work: Callable[[], object]) -> None:
        """Answer with the result of a work once its conversation has a turn."""
        self._refuse_within(conversation, post.client)

        def enter() -> None:
            try:
                post.answer(work())
            except BaseException as error:
                post.answer(Raised(error))
            self._turns.note_answer(post.client)

        if self._turns.has(conversation):
            enter()
        else:
            self._turns.line.append(InLine(conversation, None, post, enter))

    def _enter(self, reply: OpenReply, post: Post) -> None:
        """Have a reply go on once it has a turn."""

        def enter() -> None:
            reply.is_ready = True
            self._turns.give(reply)

        self._turns.line.append(InLine(reply.conversation, reply, post, enter))

    # ---- work ----

    def _decode(self) -> None:
        """Decode what comes next in one batch. If that fails, each feed is tried by itself, so that one fails alone."""
        replies = {reply.feed: reply for reply in self._feeding if reply.feed is not None}
        batch = self._scheduler.next(list(replies))
        before = [it.feed.cache.n_past for it in batch]
        begun = self._clock()
        rows: list[int] = []
        error: BaseException | None = None
        try:
            rows = self.engine.loaded.decoder.decode([it.feed for it in batch])
        except BaseException as failure:
            error = failure
        self._scheduler.note(batch, list(replies), self._clock() - begun)
        for i, (it, n_past) in enumerate(zip(batch, before, strict=True)):
            if error is not None and len(batch) > 1 and it.feed.cache.n_past == n_past:
                it.has_failed = True
                continue
            self._take_feed(replies[it])
            self._go_on(replies[it], None if error else rows[i], error)

    def _take_feed(self, reply: OpenReply) -> None:
        """Note that a reply waits for no batch any more."""
        if reply.feed is not None:
            reply.feed = None
            self._feeding.remove(reply)

    def _go_on(self, reply: OpenReply, row: int | None = None, error: BaseException | None = None) -> None:
        """Have a reply work until it waits for something. row, error: of its feed"""
        reply.is_ready = False
        if reply in self._reporting:
            self._reporting.remove(reply)
        try:
            event = _next_event(reply, row, error)
        except StopIteration:
            self._end_reply(reply, None)
        except BaseException as failure:
            self._end_reply(reply, failure)
        else:
            reply.conversation.state.note()
            self._note(reply, event)

    def _note(self, reply: OpenReply, event: object) -> None:
        """Note what a reply waits for."""
        if isinstance(event, Feed):
            reply.feed = WaitingFeed(event, reply.share)
            self._feeding.append(reply)
        elif isinstance(event, Progress):
            self._reporting.append(reply)
            reply.is_ready = not reply.reports
            if reply.reports:
                reply.say(event)
        else:
            reply.paused_since = self._clock()
            reply.say(event)

    def _finish(self, reply: OpenReply) -> None:
        """Bring a reply that has paused to its end, as if it was cancelled; its client may still ask how it ended."""
        self._cancel(reply.conversation)
        while reply.ended is None:
            if reply.feed is not None:
                self._end_reply(reply, _closed(reply))
            else:
                self._go_on(reply)

    def _end_reply(self, reply: OpenReply, error: BaseException | None) -> None:
        """Note that a reply is over, and tell its client if it waits."""
        self._take_feed(reply)
        reply.is_ready = False
        if reply in self._reporting:
            self._reporting.remove(reply)
        reply.ended = Ended(reply.stats, error)
        self._turns.end(reply)
        if reply.answer is not None:
            del self._replies[reply.number]
            reply.say(reply.ended)
            self._turns.note_answer(reply.client)
        if reply.conversation in self._closing:
            self._forget(reply.conversation)

    # ---- the end ----

    def _take_stop(self, post: Post) -> None:
        if self._stop is not None:
            post.answer(None)
            return
        self._stop = post
        for waits in self._turns.line:
            waits.post.answer(Raised(SessionError(CLOSED)))
        self._turns.line.clear()
        for reply in self._replies.values():
            reply.conversation.cancelled.set()

    def _may_stop(self, stop: Post) -> bool:
        """Return True if nobody is at work, beside a client that asks for the end while it looks at the progress."""
        at_work = [it for it in self._replies.values() if it.is_ready or it.feed is not None]
        return not at_work and all(it.client == stop.client for it in self._reporting)

    def close(self) -> None:
        """Free everything. Replies that are open end, and who waits is refused."""
        self.engine.close()
        for reply in self._replies.values():
            _closed(reply)
            reply.say(Raised(SessionError(CLOSED)))
        if self._stop is not None:
            self._stop.answer(None)


def _closed(reply: OpenReply) -> BaseException | None:
    """End a reply where it is; returns what that raises."""
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
