"""The loop: one thread that owns a loaded model and its cells, takes messages, and answers each."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from edgekv.conversations.conversation import Conversation
from edgekv.conversations.local_engine import LocalEngine
from edgekv.errors import SessionError

from .ceiling_moves import CeilingMoves
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
    FollowGrammars,
    ForkConversation,
    LoadConversation,
    MoveCeiling,
    NewConversation,
    Next,
    Raised,
    Reply,
    Stop,
)
from .open_reply import OpenReply, Post
from .replies import Replies, close_events, say
from .slot_queue import SlotQueue, Waiting


class Loop:
    """Owns an engine. All of it is for one thread; `take` and `step` are called in turn (`thread.py`).

    As many conversations as there are slots *hold* one: their replies keep their cells while they are iterated. All
    others wait in order of arrival. They pass a reply whose client asked for no piece for IDLE_S, or whose client waits
    itself. A reply that was passed waits again, behind the others. A call holds a slot for its own length.

    clock: gives seconds
    """

    def __init__(self, engine: LocalEngine, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine = engine
        self._conversations: dict[int, Conversation] = {}
        self._slots = SlotQueue(engine, clock)
        self._replies = Replies(engine, self._slots, clock, self._note_end)
        self._closing: set[Conversation] = set()  # closed in the midst of a reply
        self._moves = CeilingMoves(engine)
        self._stop: Post | None = None

    def conversation(self, number: int) -> Conversation:
        """Return an open conversation. Raises SessionError."""
        if number not in self._conversations:
            raise SessionError(CLOSED)
        return self._conversations[number]

    def take(self, post: Post) -> None:
        """Take a message. It is answered now, or in one of the next steps."""
        if self.engine.n_slots > 1:
            self._slots.note_request(post.client)
        try:
            self._take(post)
        except BaseException as error:  # any error is the client's, and the loop goes on
            post.answer(Raised(error))

    def step(self) -> float | None:
        """Do the next thing that can be done; returns how many seconds to wait for a message. None = until one comes"""
        if self._stop is not None and self._may_stop(self._stop):
            self.close()
            return None
        replies, slots = self._replies, self._slots
        if self._moves.waiting and replies.may_move:
            self._move_ceiling()
        if slots.waiting and not replies.reporting:
            slots.admit()
        wait = replies.step() if replies.by_number else None
        if wait is None and slots.waiting and not replies.reporting:
            wait = slots.until_one_is_passed()
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
            self._with_slot(replaced, post, lambda: self._load(message, replaced))
        elif isinstance(message, ForkConversation):
            origin = self.conversation(message.origin)
            self._with_slot(origin, post, lambda: self._fork(message, origin))
        elif isinstance(message, Call) and message.name in WITH_CELLS and message.conversation is not None:
            conversation = self.conversation(message.conversation)
            self._with_slot(conversation, post, lambda: self._call(message))
        elif isinstance(message, Call) and message.name in OF_ALL_CELLS:
            self._with_slot(None, post, lambda: self._call(message))
        elif isinstance(message, (MoveCeiling, FollowGrammars)):
            self._refuse_within(None, post.client)
            self._moves.add(post, message)
        elif isinstance(message, Stop):
            self._take_stop(post)
        else:
            post.answer(self._done(message))

    def _done(self, message: object) -> object:
        """Return the answer to a message that needs no slot."""
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
            if message.name in OF_IDLE:
                self._end_forgotten(conversation)
        found = getattr(owner, message.name)
        return found(*message.arguments) if callable(found) else found

    def _load(self, message: LoadConversation, replaced: Conversation | None) -> None:
        if replaced is not None:
            self._end_forgotten(replaced)
        self._conversations[message.number] = self.engine.load_conversation(
            message.path, replaced, keeps_log=message.keeps_log, keep=message.keep
        )

    def _fork(self, message: ForkConversation, origin: Conversation) -> None:
        self._end_forgotten(origin)
        self._conversations[message.number] = self.engine.fork(origin)

    def _take_reply(self, post: Post, message: Reply) -> None:
        conversation = self.conversation(message.conversation)
        self._refuse_within(conversation, post.client)
        self._end_forgotten(conversation)
        conversation.cancelled.clear()
        events = conversation.reply(message.request, message.stats)
        reply = OpenReply(
            message.number, conversation, message.stats, events, message.reports, post.client, post.answer
        )
        self._replies.by_number[message.number] = reply
        self._enter(reply, post)

    def _take_next(self, post: Post, number: int) -> None:
        reply = self._replies.by_number.get(number)
        if reply is None or reply.ended is not None:
            self._replies.by_number.pop(number, None)
            post.answer(Ended(None) if reply is None else reply.ended)
            return
        if self._replies.reporting:
            self._refuse_within(reply.conversation, post.client)
        reply.answer, reply.client = post.answer, post.client
        if self.engine.n_slots > 1 and reply not in self._replies.reporting:
            self._slots.note_return(reply)
        if reply.conversation in self._slots.holders or reply.conversation.cancelled.is_set():
            reply.is_ready = True
        else:
            self._enter(reply, post)

    def _abort(self, number: int) -> Ended:
        reply = self._replies.by_number.get(number)
        if reply is None:
            return Ended(None)
        if reply.ended is None:
            reply.answer = None
            self._replies.close(reply)
        del self._replies.by_number[number]
        return reply.ended or Ended(None)

    def _cancel(self, conversation: Conversation) -> None:
        """Have the reply of a conversation end by itself. One that waits for a slot needs none for that."""
        conversation.cancelled.set()
        waits = self._slots.take_out(conversation)
        if waits is None or waits.reply is None:
            return
        if isinstance(waits.post.message, Next):
            waits.reply.is_ready = True
        else:  # it has not begun
            waits.reply.stats.finish_reason = "cancelled"
            self._replies.end(waits.reply)

    def _close(self, number: int) -> None:
        conversation = self._conversations.pop(number, None)
        if conversation is None:  # this was asked before
            return
        self._cancel(conversation)
        reply = self._replies.of(conversation)
        if reply is not None and reply.is_paused and reply not in self._replies.reporting:
            self._replies.finish(reply)
        if self._replies.of(conversation) is None:
            self._forget(conversation)
        else:
            self._closing.add(conversation)

    def _end_forgotten(self, conversation: Conversation) -> None:
        """Bring the reply of a conversation, if any, to its end, as if it was cancelled."""
        reply = self._replies.of(conversation)
        if reply is not None:
            self._cancel(conversation)
            self._replies.finish(reply)

    def _note_end(self, reply: OpenReply) -> None:
        """Forget the conversation of a reply that has ended, if it was closed meanwhile."""
        if reply.conversation in self._closing:
            self._forget(reply.conversation)

    def _forget(self, conversation: Conversation) -> None:
        self._closing.discard(conversation)
        conversation.close()

    # ---- slots ----

    def _refuse_within(self, conversation: Conversation | None, client: Hashable) -> None:
        """Raise SessionError if the client is in the midst of a call of another conversation."""
        for reply in self._replies.reporting:
            if reply.client == client and reply.conversation is not conversation:
                raise SessionError(
                    "another session is at work in this very call, such as one with a `progress`; use this one after it"
                )

    def _with_slot(self, conversation: Conversation | None, post: Post, work: Callable[[], object]) -> None:
        """Answer with the result of a work once its conversation may use the cells."""
        self._refuse_within(conversation, post.client)

        def enter() -> None:
            try:
                post.answer(work())
            except BaseException as error:
                post.answer(Raised(error))
            self._slots.note_answer(post.client)

        if conversation in self._slots.holders:
            enter()
        else:
            self._slots.waiting.append(Waiting(conversation, None, post, enter))

    def _enter(self, reply: OpenReply, post: Post) -> None:
        """Have a reply go on once it holds a slot."""

        def enter() -> None:
            reply.is_ready = True
            self._slots.give(reply)

        self._slots.waiting.append(Waiting(reply.conversation, reply, post, enter))

    # ---- the ceiling ----

    def _move_ceiling(self) -> None:
        """Go on with moves of the ceiling, as far as they can go now. A reply whose cells they lost ends."""
        self.engine.at_work.update(reply.conversation.state for reply in self._replies.at_work)
        for answered in self._moves.go_on():
            self._slots.note_answer(answered.client)
        self.engine.at_work.clear()
        self._replies.end_lost()

    # ---- the end ----

    def _take_stop(self, post: Post) -> None:
        if self._stop is not None:
            post.answer(None)
            return
        self._stop = post
        for waits in self._slots.waiting:
            waits.post.answer(Raised(SessionError(CLOSED)))
        self._slots.waiting.clear()
        for reply in self._replies.by_number.values():
            reply.conversation.cancelled.set()

    def _may_stop(self, stop: Post) -> bool:
        """Return True if nobody is at work, beside a client that asks for the end while it looks at the progress."""
        replies = self._replies
        at_work = [it for it in replies.by_number.values() if it.is_ready or it.feed is not None]
        return not at_work and all(it.client == stop.client for it in replies.reporting)

    def close(self) -> None:
        """Free everything. Replies that are open end, and who waits is refused."""
        self._moves.refuse()
        self.engine.close()
        for reply in self._replies.by_number.values():
            close_events(reply)
            say(reply, Raised(SessionError(CLOSED)))
        if self._stop is not None:
            self._stop.answer(None)
