"""The queue of replies and calls that wait for a slot of the cells, and the replies that hold one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from edgekv.conversations.conversation import Conversation
from edgekv.conversations.local_engine import LocalEngine

from .loop_messages import OF_ONE_REPLY
from .open_reply import OpenReply, Post

IDLE_S = 0.1  # longest wait for a reply that nobody iterates
SOON_S = 0.003  # longest wait of a batch for a reply that pauses


class Waiting(NamedTuple):
    """Work that waits for a slot of the cells.

    conversation: that it is for; None = a new one
    reply: that begins or goes on; None = it is a call
    """

    conversation: Conversation | None
    reply: OpenReply | None
    post: Post
    enter: Callable[[], None]


class SlotQueue:
    """The replies that hold a slot, of at most as many conversations as there are slots, and the queue of the others.

    waiting: what waits, in order of arrival
    holders: the conversations that hold a slot, and their replies
    clock: gives seconds
    """

    def __init__(self, engine: LocalEngine, clock: Callable[[], float]) -> None:
        self.waiting: list[Waiting] = []
        self._engine = engine
        self._clock = clock
        self.holders: dict[Conversation, OpenReply] = {}
        self._answered: dict[Hashable, float] = {}  # when clients had their last answer that may lead to a next request

    def give(self, reply: OpenReply) -> None:
        """Give a reply a slot."""
        self.holders[reply.conversation] = reply
        self._note()

    def end(self, reply: OpenReply) -> None:
        """Take a reply's slot away, if it holds one, or take it out of the queue."""
        self.waiting = [it for it in self.waiting if it.reply is not reply]
        if self.holders.get(reply.conversation) is reply:
            del self.holders[reply.conversation]
            self._note()

    def take_out(self, conversation: Conversation) -> Waiting | None:
        """Take the reply of a conversation out of the queue, and return its place there; None = it does not wait."""
        waits = next((it for it in self.waiting if it.reply is not None and it.conversation is conversation), None)
        if waits is not None:
            self.waiting.remove(waits)
        return waits

    def admit(self) -> None:
        """Let all enter that may: those whose conversation holds a slot, and the first of the others if one is free."""
        for waits in list(self.waiting):
            if waits.conversation in self.holders or (
                waits is self.waiting[0] and self._has_room_for(waits.post.client)
            ):
                self.waiting.remove(waits)
                waits.enter()

    def until_one_is_passed(self) -> float | None:
        """Return the seconds until the queue may move on; None = only a message can move it."""
        if not self.waiting:
            return None
        idle = min((it.paused_since for it in self.holders.values()), default=0.0)
        return max(0.0, idle + IDLE_S - self._clock())

    def patience(self, feeding: Iterable[OpenReply]) -> float:
        """Return the seconds to wait for clients that come back soon, so that they share the next batch.

        feeding: the replies that wait for it
        """
        clients = {reply.client for reply in feeding}
        paused = (
            it for it in self.holders.values() if it.is_paused and it.comes_back_soon and it.client not in clients
        )
        since = [*(it.paused_since for it in paused), *self._answered.values()]
        return max([0.0, *(then + SOON_S - self._clock() for then in since)])

    def note_return(self, reply: OpenReply) -> None:
        """Note that a reply is asked for its next piece."""
        reply.comes_back_soon = self._clock() - reply.paused_since <= SOON_S

    def note_request(self, client: Hashable) -> None:
        """Note a message of a client."""
        self._answered.pop(client, None)

    def note_answer(self, client: Hashable) -> None:
        """Note the end of a reply or a call, after which a client may ask for the next."""
        has_one_reply = isinstance(client, int) and client & OF_ONE_REPLY
        if self._engine.n_slots > 1 and not has_one_reply:
            self._answered = {it: then for it, then in self._answered.items() if then + SOON_S > self._clock()}
            self._answered[client] = self._clock()

    def _has_room_for(self, client: Hashable) -> bool:
        """Return True if there is a free slot, or if a reply was passed that its client does not iterate."""
        if len(self.holders) < self._engine.n_slots:
            return True
        now = self._clock()
        for reply in self.holders.values():
            if reply.is_paused and (reply.client == client or reply.paused_since + IDLE_S <= now):
                self.end(reply)
                return True
        return False

    def _note(self) -> None:
        """Tell the engine who holds a slot."""
        self._engine.holding.clear()
        self._engine.holding.update(conversation.state for conversation in self.holders)
        self._engine.loaded.decoder.is_shared = len(self.holders) > 1
