"""An engine and its conversations, as runtimes and sessions use them, whichever process the loop is in."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from edgekv.conversations.snapshot import Snapshot
from edgekv.errors import EdgeKVError, SessionError, WorkerError
from edgekv.generation.request import GenerationRequest, Logging, Progress, ProgressCallback, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.planning.plan import Plan

from .loop_channel import Channel, Mailbox
from .loop_messages import (
    OF_ONE_REPLY,
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
    Reply,
)


class Engine:
    """A loaded model and its cells, at the other end of a channel. Close it.

    A runtime and each of its sessions hold the engine, so it lives as long as one of them. If it is dropped without
    being closed, it frees everything, with a ResourceWarning. Garbage is collected in any thread and in the midst of
    any call. So that may wait for no lock of another object.

    mark: bytes that its snapshots carry
    closed: everything was freed
    open: its conversations, which are cancelled if it is closed
    """

    closed = True  # until it was made

    def __init__(self, channel: Channel, plan: Plan, mark: bytes) -> None:
        self.channel = channel
        self.plan = plan
        self.mark = mark
        self._planning = threading.Lock()  # held while the plan of now is asked for
        self._numbers = itertools.count(1)
        self.open: weakref.WeakSet[ConversationClient] = weakref.WeakSet()
        self._opened_by = os.getpid()  # a fork frees nothing
        self.closed = False

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.closed or is_finalizing() or self._opened_by != os.getpid():  # at exit the system frees it
            return
        self.closed = True
        try:
            warnings.warn(
                f"a runtime of {self.plan.model.name} was dropped without being closed, and is freed only now; call "
                "its close(), or open it in `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            self.channel.drop()

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> ConversationClient:
        """Begin a conversation; arguments and errors as of `LocalEngine.new_conversation`."""
        number = self.new_number()
        self.channel.ask(NewConversation(number, system, logging))
        return ConversationClient(self, number, system)

    def load_conversation(
        self, path: Path, instead_of: ConversationClient | None = None, *, keeps_log: bool = True, keep: bool = False
    ) -> ConversationClient:
        """Load a saved or kept conversation; arguments and errors as of `LocalEngine.load_conversation`."""
        number = self.new_number()
        replaced = None if instead_of is None else instead_of.number
        self.channel.ask(LoadConversation(number, path, replaced, keeps_log, keep))
        return ConversationClient(self, number, cast("str | None", self.channel.look(number, "system")))

    def fork(self, conversation: ConversationClient) -> ConversationClient:
        """Begin a conversation with all that another one has read and said, as `LocalEngine.fork`.

        No reply of it may be under way.
        """
        number = self.new_number()
        self.channel.ask(ForkConversation(number, conversation.number))
        return ConversationClient(self, number, conversation.system)

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the result of a method of the loop's engine, or a property. Raises its errors."""
        return self.channel.ask(Call(None, name, arguments))

    def set_memory(self, ceiling_bytes: int) -> Plan:
        """Go under another ceiling; returns the plan. Raises CeilingError, ConfigError and SwapError.

        After an error the ceiling is as before.
        """
        return self._move(MoveCeiling(ceiling_bytes))

    def _move(self, message: MoveCeiling | FollowGrammars) -> Plan:
        moved = cast(Plan, self.channel.ask(message))
        with self._planning:
            self.plan = cast(Plan, self.call("plan"))  # another thread may have moved it since
        return moved

    def follow_grammars(self) -> None:
        """Have replies follow grammars from now on. Raises what `set_memory` does if there is no room for that."""
        if not self.plan.parts.grammars:
            self._move(FollowGrammars())

    def close(self) -> None:
        """End all calls under way, and free everything."""
        self.closed = True
        for conversation in list(self.open):
            conversation.cancelled.set()
        self.channel.close()

    def new_number(self) -> int:
        """Return a number for a conversation or a reply."""
        return next(self._numbers)

    def new_client(self) -> int:
        """Return a number for a client of one reply, which no thread has."""
        return OF_ONE_REPLY | self.new_number()


class ConversationClient:
    """One session's prompts and replies, and the cells that hold them. Its engine must be open.

    system: the system message, which is never evicted; None = there is none
    cancelled: it was cancelled since the last reply began
    """

    def __init__(self, engine: Engine, number: int, system: str | None) -> None:
        self.number = number
        self.system = system
        self.cancelled = threading.Event()
        self._engine = engine
        self._stats = Stats()
        engine.open.add(self)
        self._aborted: Mailbox | None = None  # takes the end of a reply that was left

    @property
    def stats(self) -> Stats:
        """Figures of the last reply, final when it has ended."""
        self._await_end()
        return self._stats

    def reply(
        self,
        request: GenerationRequest | RewindRequest,
        progress: ProgressCallback | None,
        client: int | None = None,
    ) -> Generator[str | Mailbox, None, None]:
        """Read a prompt and yield the text of its reply in pieces; works only while it is iterated.

        Once `cancelled` is set, it ends at the next block or token. Raises InputError or SessionError before anything
        is read.

        client: who waits for it, and is given the box of each answer before; None = the thread that iterates
        """
        engine = self._engine
        self._aborted = None  # a reply that was left ends before this one begins
        number = engine.new_number()
        plan = engine.plan
        self._stats = stats = Stats(budget_cells=plan.budget_cells, even_cells=plan.even_cells)
        if self.cancelled.is_set():
            stats.finish_reason = "cancelled"
            return
        has_files = isinstance(request, GenerationRequest) and any(isinstance(part, Path) for part in request.content)
        folder = os.getcwd() if has_files and engine.channel.worker_pid is not None else None
        begin, following = Reply(number, self.number, request, folder, stats, progress is not None), Next(number)
        left = _Left(self, number)
        try:
            try:
                answer = engine.channel.request(begin, client)
            except EdgeKVError:  # nothing was posted
                left.is_over = True
                raise
            if self.cancelled.is_set():  # before it began, which forgets earlier cancels
                engine.channel.post(Cancel(self.number))
            if client is not None:
                yield answer
            while not isinstance(part := answer.get(), Ended):
                if not isinstance(part, Progress):
                    yield part
                elif progress is not None:
                    progress(part)
                answer = engine.channel.request(following, client)
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

    def leave(self, number: int) -> None:
        """Have the loop end a reply that is no longer iterated, without waiting. At exit it ends anyway."""
        if not self._engine.closed and not sys.is_finalizing():
            self._aborted = self._engine.channel.post(Abort(number))

    def cancel(self) -> None:
        """End the running reply, if any, at the next block or token. Any thread may call this, at any time."""
        self.cancelled.set()
        if not self._engine.closed:
            self._engine.channel.post(Cancel(self.number))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. Raises SessionError for another runtime's or system message's, or without a log."""
        if self._engine.channel.worker_pid is not None:
            self.call("check_room", snapshot.nbytes)
        self.call("restore", snapshot)

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the result of a method of the loop's conversation, or a property that needs the loop.

        Raises its errors. No reply may be under way if the method needs the cells.
        """
        return self._engine.channel.ask(Call(self.number, name, arguments))

    def look(self, name: str) -> Any:
        """Return a property of the loop's conversation, as of the end of the last call, piece or block."""
        self._await_end()
        return self._engine.channel.look(self.number, name)

    def close(self) -> None:
        """Have the loop forget it, in any state, and wait for that; a callback of the loop does not wait."""
        try:
            answer = self._engine.channel.request(Close(self.number))
        except SessionError:
            self.drop()
        else:
            with suppress(SessionError, WorkerError):  # all was freed
                answer.get()

    def drop(self) -> None:
        """Have the loop forget it, in any state, without waiting. Any thread may call this, and finalizers."""
        if not self._engine.closed and not sys.is_finalizing():
            self._engine.channel.post(Close(self.number))

    def _await_end(self) -> None:
        """Wait until a reply that was left has ended, and take its figures."""
        while (aborted := self._aborted) is not None:
            with suppress(EdgeKVError):  # the runtime was closed, or its worker has died
                part = aborted.get()
                if part.stats is not None:
                    self._stats = part.stats
            self._aborted = None


class _Left:
    """Ends a reply in the loop when its client is gone, even if an interrupt ended the client."""

    def __init__(self, conversation: ConversationClient, number: int) -> None:
        self.is_over = False
        self._conversation = conversation
        self._number = number

    def end(self) -> None:
        """Leave the reply, unless it is over."""
        if not self.is_over:
            self.is_over = True
            self._conversation.leave(self._number)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.end()
