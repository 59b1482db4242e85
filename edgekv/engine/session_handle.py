"""A session's access to its conversation: for one user at a time, and in turn with other sessions."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from edgekv.errors import SessionError
from edgekv.prompt.spool import rereadable

from .protocol import Conversation, Engine
from .request import GenerationRequest, ProgressCallback, RewindRequest
from .snapshot import Snapshot
from .stats import Stats


class _User:
    """Stands for a call that is alone with a conversation."""

    __slots__ = ("__weakref__",)


class SessionHandle:
    """The use of one conversation until it is closed, or nobody has the access any more.

    start: what the conversation begins with when it is first used
    """

    def __init__(self, engine: Engine, conversation: Conversation, start: Snapshot | None) -> None:
        self.engine = engine
        self.conversation = conversation
        self._start = start
        self._ended = False
        self._users = threading.RLock()
        self._user: weakref.ref[_User] | None = None  # who is alone with it, as long as that lives

    @property
    def closed(self) -> bool:
        """Whether it or the engine was closed."""
        return self._ended or self.engine.closed

    def close(self) -> None:
        """End a reply, and free what the conversation holds, at the latest when another one is used."""
        if self.closed:
            return
        self._ended = True
        self.cancel()
        self.conversation.close()
        self._reap()

    def __del__(self) -> None:
        if not self._ended:
            self.conversation.close()

    def cancel(self) -> None:
        """End the running reply, if any, at the next block or token. May be called from any thread."""
        self.conversation.cancelled.set()
        self.engine.turn_queue.wake()

    def live(self) -> Conversation:
        """The conversation, for what needs neither the turn nor to be alone. Raises SessionError once it is closed."""
        if self.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")
        return self.conversation

    @contextmanager
    def begun(self) -> Iterator[Conversation]:
        """The conversation, for what needs no turn once it has begun."""
        if self._start is None:
            yield self.live()
        else:
            with self.swapped_in() as conversation:
                yield conversation

    @contextmanager
    def swapped_in(self) -> Iterator[Conversation]:
        """The conversation, whose turn it is."""
        with self.engine.turn_queue.ticket(self.live()) as ticket:
            ticket.enter()
            conversation = self.live()
            self._begin(conversation)
            yield conversation

    @contextmanager
    def alone(self) -> Iterator[Conversation]:
        """The conversation, for one user at a time. Raises SessionError while another one has it."""
        user = _User()
        with self._users:
            if self._is_used():
                gc.collect()  # an interrupted call may be gone, and its user not yet
            if self._is_used():
                raise SessionError("this session is already answering; wait for the reply or cancel it")
            self._user = weakref.ref(user)
        try:
            yield self.live()
        finally:
            self._user = None  # if an interrupt comes first, `user` goes with this frame
            if self._ended:
                self._reap()

    def _is_used(self) -> bool:
        return self._user is not None and self._user() is not None

    def reply(
        self, request: GenerationRequest | RewindRequest, progress: ProgressCallback | None
    ) -> Generator[str, None, None]:
        """The pieces of a reply, alone, each in its turn. What can be read only once is copied before."""
        with self.alone() as conversation, ExitStack() as copies:
            conversation.cancelled.clear()
            if isinstance(request, GenerationRequest):
                content = (
                    copies.enter_context(rereadable(part, conversation.cancelled)) if isinstance(part, Path) else part
                    for part in request.content
                )
                request = replace(request, content=tuple(content))
            ticket = copies.enter_context(self.engine.turn_queue.ticket(conversation, conversation.cancelled))
            if not ticket.enter():  # cancelled while it waited, or while a pipe was copied
                conversation.stats = Stats(finish_reason="cancelled")
                return
            self._begin(self.live())
            pieces = copies.enter_context(closing(conversation.reply(request, progress)))
            for piece in pieces:
                if piece:
                    ticket.pause()
                    yield piece
                    ticket.enter()  # or it was cancelled meanwhile, and ends without the cells

    def _begin(self, conversation: Conversation) -> None:
        """Begin with what the conversation was to begin with."""
        if self._start is not None:
            conversation.restore(self._start)
            self._start = None

    def _reap(self) -> None:
        """Free what closed conversations held, if nobody is at work."""
        with self.engine.turn_queue.ticket(self.conversation) as ticket:
            if ticket.enter_if_free():
                self.engine.reap()
