"""A conversation of an engine that one caller has to itself at a time."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import SessionError
from .loop.clients import ConversationClient, Engine

if TYPE_CHECKING:
    from typing_extensions import Self

    from .conversations.snapshot import Snapshot


class _User:
    """A call that has a conversation to itself."""

    __slots__ = ("__weakref__",)


class HeldConversation:
    """A conversation until `close`, the end of `with` or of the runtime. `cancel` may be called from any thread."""

    _ended = True  # until it was made

    def __init__(self, engine: Engine, conversation: ConversationClient, start: Snapshot | None = None) -> None:
        """Hold a conversation. start: a snapshot that it begins with at its first use"""
        self._engine = engine
        self._conversation = conversation
        self._start = start
        self._ended = False
        self._cancels = object()  # another one after every cancel, so that a reply knows if one came since it was made
        self._beginning = threading.Lock()
        self._users = threading.RLock()
        self._user: weakref.ref[_User] | None = None  # the call that has it to itself, as long as that lives

    @contextmanager
    def alone(self) -> Iterator[ConversationClient]:
        """Yield the conversation to one user at a time. Raises SessionError while another user has it."""
        user = _User()
        with self._users:
            if self._is_used():
                gc.collect()  # an interrupted call may be gone before its user
            if self._is_used():
                raise SessionError("this session is already answering; wait for the reply or cancel it")
            self._user = weakref.ref(user)
        try:
            yield self._live()
        finally:
            self._user = None  # if an interrupt comes first, `user` goes with this frame

    def is_of(self, engine: Engine) -> bool:
        """Return True if the session has its cells in this engine."""
        return self._engine is engine

    @property
    def closed(self) -> bool:
        """True if the session or its runtime was closed."""
        return self._ended or self._engine.closed

    def close(self) -> None:
        """End the session, and free its state, at the latest when another session is used."""
        if self.closed:
            return
        self.cancel()
        self._conversation.close()
        self._ended = True  # if an interrupt comes before, it is closed again or dropped

    def cancel(self) -> None:
        """End the running reply, if any, at the next block or token. May be called from any thread.

        A reply that was made before, and of which no piece was fetched yet, ends without one.
        """
        self._cancels = object()  # before the event is set: a reply that begins clears it, and then looks here
        self._conversation.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._conversation.drop()

    def _live(self) -> ConversationClient:
        """Return the conversation. Raises SessionError if the session is closed."""
        if self.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")
        return self._conversation

    def _begun(self) -> ConversationClient:
        """Return the conversation, restored from `start` at the first use."""
        conversation = self._live()
        if self._start is not None:
            with self._beginning:
                if self._start is not None:
                    conversation.restore(self._start)
                    self._start = None
        return conversation

    def _is_used(self) -> bool:
        return self._user is not None and self._user() is not None
