"""The loop: one thread that owns a loaded model and its cells, takes messages, and answers each."""

from __future__ import annotations

from collections.abc import Callable

from edgekv.conversations.conversation import Conversation
from edgekv.errors import SessionError

from .loop_messages import (
    CLOSED,
    OF_ALL_CELLS,
    OF_IDLE,
    WITH_CELLS,
    Abort,
    Call,
    Cancel,
    Close,
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
from .replies import Replies
from .slot_queue import Waiting


class Loop(Replies):
    """Owns an engine. All of it is for one thread; `take` and `step` are called in turn (`thread.py`).

    A call that needs the cells holds a slot for its own length.
    """

    def conversation(self, number: int) -> Conversation:
        """Return an open conversation. Raises SessionError."""
        if number not in self._conversations:
            raise SessionError(CLOSED)
        return self._conversations[number]

    def _take(self, post: Post) -> None:
        message = post.message
        if self._stop is not None and not isinstance(message, (Abort, Stop)):
            raise SessionError(CLOSED)
        if isinstance(message, Reply):
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
        self._replies[message.number] = reply
        self._enter(reply, post)

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
            self._end(waits.reply)

    def _close(self, number: int) -> None:
        """Forget a conversation; if its reply does not end at once, `_end` does that."""
        conversation = self._conversations.pop(number, None)
        if conversation is None:  # this was asked before
            return
        reply = self._of(conversation)
        self._cancel(conversation)
        if reply is None:
            conversation.close()
        elif reply.is_paused and reply not in self._reporting:
            self._finish(reply)

    def _end_forgotten(self, conversation: Conversation) -> None:
        """Bring the reply of a conversation, if any, to its end, as if it was cancelled."""
        reply = self._of(conversation)
        if reply is not None:
            self._cancel(conversation)
            self._finish(reply)

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

    def _take_stop(self, post: Post) -> None:
        if self._stop is not None:
            post.answer(None)
            return
        self._stop = post
        for waits in self._slots.waiting:
            waits.post.answer(Raised(SessionError(CLOSED)))
        self._slots.waiting.clear()
        for reply in self._replies.values():
            reply.conversation.cancelled.set()
