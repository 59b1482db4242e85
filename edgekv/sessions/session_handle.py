"""A session's handle on its conversation: for one user at a time, and in turn with other sessions."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from edgekv.errors import SessionError
from edgekv.generation.request import GenerationRequest, ProgressCallback, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.prompt.spool import rereadable

from .protocol import Conversation, Engine
from .snapshot import Snapshot


class _User:
    """A call that has a conversation to itself."""

    __slots__ = ("__weakref__",)


class SessionHandle:
    """A handle on one conversation, which ends with `close` or with the handle.

    start: a snapshot that the conversation begins with at its first use
    """

    def __init__(self, engine: Engine, conversation: Conversation, start: Snapshot | None) -> None:
        self.engine = engine
        self.conversation = conversation
        self._start = start
        self._ended = False
        self._users = threading.RLock()
        self._user: weakref.ref[_User] | None = None  # the call that has it to itself, as long as that lives

    @property
    def closed(self) -> bool:
        """True if the handle or the engine was closed."""
        return self._ended or self.engine.closed

    def close(self) -> None:
        """End a reply, and free the conversation's state, at the latest when another one is used."""
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
        """Return the conversation, for calls that need neither turn nor exclusive use. Raises SessionError."""
        if self.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")
        return self.conversation

    @contextmanager
    def begun(self) -> Iterator[Conversation]:
        """Yield the conversation, restored from `start`, for calls that need no turn."""
        if self._start is None:
            yield self.live()
        else:
            with self.swapped_in() as conversation:
                yield conversation

    @contextmanager
    def swapped_in(self) -> Iterator[Conversation]:
        """Yield the conversation while it has its turn."""
        with self.engine.turn_queue.ticket(self.live()) as ticket:
            ticket.enter()
            conversation = self.live()
            self._begin(conversation)
            yield conversation

    @contextmanager
    def alone(self) -> Iterator[Conversation]:
        """Yield the conversation to one user at a time. Raises SessionError while another user has it."""
        user = _User()
        with self._users:
            if self._is_used():
                gc.collect()  # an interrupted call may be gone before its user
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
        """Yield the pieces of a reply, each in its turn. Files that can be read only once are copied first."""
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
                    ticket.enter()  # returns without the cells if it was cancelled meanwhile; the reply then ends

    def _begin(self, conversation: Conversation) -> None:
        """Restore the snapshot that the conversation begins with."""
        if self._start is not None:
            conversation.restore(self._start)
            self._start = None

    def _reap(self) -> None:
        """Free the state of closed conversations, if no call is at work."""
        with self.engine.turn_queue.ticket(self.conversation) as ticket:
            if ticket.enter_if_free():
                self.engine.reap()
