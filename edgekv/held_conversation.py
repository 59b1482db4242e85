"""A conversation of an engine that one caller has to itself at a time, and its replies."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .conversations.history import question_of, rereadable_request
from .errors import ConfigError, EdgeKVError, SessionError, WorkerError
from .generation.request import GenerationRequest, Progress, ProgressCallback, RewindRequest
from .generation.stats import Stats
from .loop.engine import Engine
from .loop.loop_channel import Mailbox
from .loop.loop_messages import Abort, Call, Cancel, Close, Ended, Next, Reply
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

    def __init__(self, engine: Engine, number: int, system: str | None, start: Snapshot | None = None) -> None:
        """Hold a conversation of the loop, by its number.

        system: its system message; None = there is none
        start: a snapshot that it begins with at its first use
        """
        self._engine = engine
        self._number = number
        self._system = system
        self._start = start
        self._stats = Stats()
        self._cancels = object()  # another one after every cancel, so that a reply knows if one came since it was made
        self._cancelled = threading.Event()  # since the last reply began
        self._aborted: Mailbox | None = None  # takes the end of a reply that was left
        self._beginning = threading.Lock()
        self._users = threading.RLock()
        self._user: weakref.ref[_User] | None = None  # the call that has it to itself, as long as that lives
        engine.cancels.add(self._cancelled)
        self._ended = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have the session to oneself. Raises SessionError while another user has it."""
        user = _User()
        with self._users:
            if self._is_used():
                gc.collect()  # an interrupted call may be gone before its user
            if self._is_used():
                raise SessionError("this session is already answering; wait for the reply or cancel it")
            self._user = weakref.ref(user)
        try:
            self._check_open()
            yield
        finally:
            self._user = None  # if an interrupt comes first, `user` goes with this frame

    def is_of(self, engine: Engine) -> bool:
        """Return True if the session has its cells in this engine."""
        return self._engine is engine

    @property
    def stats(self) -> Stats:
        """Tokens, times and memory of the last reply, complete when that has ended."""
        self._await_end()
        return self._stats

    @property
    def system(self) -> str | None:
        """The system message, which is never evicted; None = there is none."""
        self._check_open()
        return self._system

    @property
    def closed(self) -> bool:
        """True if the session or its runtime was closed."""
        return self._ended or self._engine.closed

    def close(self) -> None:
        """End the session, and free its state, at the latest when another session is used."""
        if self.closed:
            return
        self.cancel()
        try:
            answer = self._engine.channel.request(Close(self._number))
        except SessionError:  # a callback of the loop cannot wait
            self._drop()
        else:
            with suppress(SessionError, WorkerError):  # all was freed
                answer.get()
        self._ended = True  # if an interrupt comes before, it is closed again or dropped

    def cancel(self) -> None:
        """End the running reply, if any, at the next block or token. May be called from any thread.

        A reply that was made before, and of which no piece was fetched yet, ends without one.
        """
        self._cancels = object()  # before the event is set: a reply that begins clears it, and then looks here
        self._cancelled.set()
        if not self._engine.closed:
            self._engine.channel.post(Cancel(self._number))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._drop()

    def _drop(self) -> None:
        """Have the loop forget it, in any state, without waiting. Finalizers may call this."""
        if not self._engine.closed and not sys.is_finalizing():
            self._engine.channel.post(Close(self._number))

    def _check_open(self) -> None:
        if self.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")

    def _begin(self) -> None:
        """Restore it from `start` at its first use. Raises SessionError if it is closed."""
        self._check_open()
        if self._start is not None:
            with self._beginning:
                if self._start is not None:
                    self._restore(self._start)
                    self._start = None

    def _restore(self, snapshot: Snapshot) -> None:
        if self._engine.channel.worker_pid is not None:
            self._ask("check_room", snapshot.nbytes)
        self._ask("restore", snapshot)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return the result of a method of the loop's conversation, or a property that needs the loop.

        Raises its errors. No reply may be under way if the method needs the cells.
        """
        self._begin()
        return self._ask(name, *arguments)

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._engine.channel.ask(Call(self._number, name, arguments))

    def _look(self, name: str) -> Any:
        """Return a property of the loop's conversation, as of the end of the last call, piece or block."""
        self._check_open()
        self._await_end()
        return self._engine.channel.look(self._number, name)

    def _await_end(self) -> None:
        """Wait until a reply that was left has ended, and take its figures."""
        while (aborted := self._aborted) is not None:
            with suppress(EdgeKVError):  # the runtime was closed, or its worker has died
                part = aborted.get()
                if part.stats is not None:
                    self._stats = part.stats
            self._aborted = None

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
        client: who waits for the loop, and is given the box of each answer before; None = the thread that iterates
        """
        with self.alone(), ExitStack() as copies:
            self._cancelled.clear()
            if self._cancels is not cancels:
                self._cancelled.set()
            if client is not None and self._may_block(request):
                yield Blocks.NOW
            if isinstance(request, GenerationRequest):
                if request.follows_grammar:
                    self._engine.follow_grammars()
                request = copies.enter_context(rereadable_request(request, self._cancelled))
                if ends_in_question and (question := question_of(request)):
                    request = replace(request, question=question)
            if not self._cancelled.is_set():
                self._begin()
            yield from copies.enter_context(closing(self._answers(request, progress, client)))
            return self.stats

    def _answers(
        self, request: GenerationRequest | RewindRequest, progress: ProgressCallback | None, client: int | None
    ) -> Generator[str | Mailbox, None, None]:
        """Have the loop answer a request, and yield the pieces; the loop works only while this is iterated.

        Once `_cancelled` is set, it ends at the next block or token.
        """
        channel, plan, number = self._engine.channel, self._engine.plan, self._engine.new_number()
        self._aborted = None  # a reply that was left ends before this one begins
        self._stats = stats = Stats(budget_cells=plan.budget_cells, even_cells=plan.even_cells)
        if self._cancelled.is_set():
            stats.finish_reason = "cancelled"
            return
        folder = os.getcwd() if channel.worker_pid is not None and _has_files(request) else None
        begin, following = Reply(number, self._number, request, folder, stats, progress is not None), Next(number)
        left = _Left(self, number)
        try:
            try:
                answer = channel.request(begin, client)
            except EdgeKVError:  # nothing was posted
                left.is_over = True
                raise
            if self._cancelled.is_set():  # before it began, which forgets earlier cancels
                channel.post(Cancel(self._number))
            if client is not None:
                yield answer
            while not isinstance(part := answer.get(), Ended):
                if not isinstance(part, Progress):
                    yield part
                elif progress is not None:
                    progress(part)
                answer = channel.request(following, client)
                if client is not None:
                    yield answer
            left.is_over = True
        except EdgeKVError:
            stats.finish_reason = stats.finish_reason or "failed"
            raise
        finally:
            left.end()
        if part.stats is not None:
            self._stats = part.stats
        if part.error is not None:
            raise part.error

    def _leave(self, number: int) -> None:
        """Have the loop end a reply that is no longer iterated, without waiting. At exit it ends anyway."""
        if not self._engine.closed and not sys.is_finalizing():
            self._aborted = self._engine.channel.post(Abort(number))

    def _may_block(self, request: GenerationRequest | RewindRequest) -> bool:
        """Return True if files may be copied, cells given up, a snapshot restored, or a worker waited for."""
        follows_grammar = isinstance(request, GenerationRequest) and request.follows_grammar
        is_isolated = self._engine.channel.worker_pid is not None
        return follows_grammar or _has_files(request) or self._start is not None or is_isolated

    def _is_used(self) -> bool:
        return self._user is not None and self._user() is not None


def _has_files(request: GenerationRequest | RewindRequest) -> bool:
    return isinstance(request, GenerationRequest) and any(isinstance(part, Path) for part in request.content)


class _Left:
    """Ends a reply in the loop when its client is gone, even if an interrupt ended the client."""

    def __init__(self, session: HeldConversation, number: int) -> None:
        self.is_over = False
        self._session = session
        self._number = number

    def end(self) -> None:
        """Leave the reply, unless it is over."""
        if not self.is_over:
            self.is_over = True
            self._session._leave(self._number)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.end()
