"""A conversation of an engine that one caller has to itself at a time, and its replies."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from .conversations.history import question_of, rereadable_request
from .errors import ConfigError, SessionError
from .generation.request import GenerationRequest, ProgressCallback, RewindRequest
from .loop.clients import ConversationClient, Engine
from .loop.reply_pieces import Blocks, Events, ReplyPieces

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

    def events(self, reply: Iterator[str]) -> Events:
        """Return the events of a reply that was not begun, for a thread that has others to go on with meanwhile."""
        return cast(ReplyPieces, reply).begin(self._engine.new_client())

    def _reply(
        self,
        request: GenerationRequest | RewindRequest,
        progress: ProgressCallback | None,
        *,
        ends_in_question: bool = False,
    ) -> ReplyPieces:
        """Return the pieces of a reply. From here on `cancel` ends it, even before its first piece is fetched.

        ends_in_question: read with the end of the user's last message
        """
        if progress is not None and not callable(progress):
            raise ConfigError(f"progress={progress!r} cannot be called; give a function of an edgekv.Progress, or None")
        return ReplyPieces(partial(self._events, request, progress, self._cancels, ends_in_question))

    def _events(
        self,
        request: GenerationRequest | RewindRequest,
        progress: ProgressCallback | None,
        cancels: object,
        ends_in_question: bool,
        client: int | None,
    ) -> Events:
        """Yield the pieces of a reply, and what it waits for; returns its figures.

        Files that can be read only once are copied first.

        cancels: the session's `_cancels` when the reply was made
        client: who waits for the loop; None = the thread that iterates
        """
        with self.alone() as conversation, ExitStack() as copies:
            conversation.cancelled.clear()
            if self._cancels is not cancels:
                conversation.cancelled.set()
            if client is not None and self._may_block(request):
                yield Blocks.NOW
            if isinstance(request, GenerationRequest):
                if request.follows_grammar:
                    self._engine.follow_grammars()
                request = copies.enter_context(rereadable_request(request, conversation.cancelled))
                if ends_in_question and (question := question_of(request)):
                    request = replace(request, question=question)
            if not conversation.cancelled.is_set():
                self._begun()
            yield from copies.enter_context(closing(conversation.reply(request, progress, client)))
            return conversation.stats

    def _may_block(self, request: GenerationRequest | RewindRequest) -> bool:
        """Return True if files may be copied, cells given up, a snapshot restored, or a worker waited for."""
        prepares = isinstance(request, GenerationRequest) and (
            request.follows_grammar or any(isinstance(part, Path) for part in request.content)
        )
        return prepares or self._start is not None or self._engine.channel.worker_pid is not None

    def _is_used(self) -> bool:
        return self._user is not None and self._user() is not None
