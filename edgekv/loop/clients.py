"""The clients of a loop: an engine and its conversations, as sessions use them, whichever process the loop is in."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from edgekv.cells.loaded_model import LoadedModel
from edgekv.cells.opened import Opened
from edgekv.conversations.coverage import Coverage
from edgekv.conversations.snapshot import Snapshot
from edgekv.errors import EdgeKVError, SessionError, WorkerError
from edgekv.generation.request import GenerationRequest, Logging, Progress, ProgressCallback, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.planning.plan import Plan
from edgekv.store.log import Turn

from .loop_messages import Abort, Call, Cancel, Close, Ended, LoadConversation, NewConversation, Next, Reply

NO_THREAD = 1 << 63  # bit of the numbers of clients that are no threads


class Answered(Protocol):
    """A box that the answer to a message comes to."""

    def get(self) -> Any:
        """Wait for the answer and return it. Raises the error that it is."""

    def notify(self, call: Callable[[], object]) -> None:
        """Have a function called once the answer is there, from any thread, and at once if it is."""


class Channel(Protocol):
    """The way to a loop."""

    @property
    def worker_pid(self) -> int | None:
        """The process id of its worker; None = it runs in this process."""

    @property
    def alive(self) -> bool:
        """False once its worker has ended."""

    @property
    def loaded(self) -> LoadedModel | None:
        """The model; None = it is in a worker."""

    def post(self, message: object, client: int | None = None) -> Answered:
        """Post a message, without waiting. Finalizers may call this, too. client: who waits; None = this thread"""

    def request(self, message: object, client: int | None = None) -> Answered:
        """Post a message whose answer is waited for. Raises SessionError if this thread cannot wait."""

    def ask(self, message: object) -> Any:
        """Return the answer to a message. Raises its error."""

    def look(self, number: int, name: str) -> Any:
        """Return a value of a conversation that needs no cells."""

    def close(self) -> None:
        """End the loop, and free everything."""

    def drop(self) -> None:
        """End the loop, in a finalizer."""


class Engine(Opened):
    """A loaded model and its cells, at the other end of a channel.

    mark: bytes that its snapshots carry
    """

    def __init__(self, channel: Channel, plan: Plan, mark: bytes) -> None:
        self.channel = channel
        self.plan = plan
        self.mark = mark
        self._numbers = itertools.count(1)
        self._open: weakref.WeakSet[Conversation] = weakref.WeakSet()
        self.opened()

    @property
    def loaded(self) -> LoadedModel | None:
        """The model; None = it is in a worker."""
        return self.channel.loaded

    @property
    def worker_pid(self) -> int | None:
        """The process id of its worker; None = it runs in this process."""
        return self.channel.worker_pid

    @property
    def alive(self) -> bool:
        """False once its worker has ended."""
        return self.channel.alive

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> Conversation:
        """Begin a conversation. Raises BudgetError if the system message leaves no cells.

        logging: keep a log; raises SessionFileError if the disk does not take it, and ConfigError for too small a cap
        """
        number = self.new_number()
        self.channel.ask(NewConversation(number, system, logging))
        return Conversation(self, number, system)

    def load_conversation(
        self, path: Path, instead_of: Conversation | None = None, *, keeps_log: bool = True
    ) -> Conversation:
        """Load the conversation of a session file, by an absolute path, into the cells.

        instead_of: a conversation that gives up its cells, and is not swapped out
        keeps_log: keep the log of the file, if it has one

        Raises SessionFileError, BudgetError or CeilingError if the file does not fit this engine, and SwapError; the
        cells are then as before.
        """
        number = self.new_number()
        replaced = None if instead_of is None else instead_of.number
        self.channel.ask(LoadConversation(number, path, replaced, keeps_log))
        return Conversation(self, number, cast("str | None", self.channel.look(number, "system")))

    def tokenize(self, text: str, begin: bool, special: bool) -> list[int]:
        """Return the tokens of a text.

        begin: with the tokens that the model expects before a text
        special: read names of control tokens as these tokens
        """
        return cast(list[int], self._call("tokenize", text, begin, special))

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Raises InputError for ids that the vocabulary lacks."""
        return cast(str, self._call("text_of", tokens))

    def pieces_of(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token. Raises InputError for ids that the vocabulary lacks."""
        return cast(list[bytes], self._call("pieces_of", tokens))

    def count(self, request: GenerationRequest) -> int:
        """Return the number of tokens of a history. Raises InputError."""
        return cast(int, self._call("count", request))

    def prompt_text(self, request: GenerationRequest) -> str:
        """Return the text that a history of messages is read as. Raises InputError."""
        return cast(str, self._call("prompt_text", request))

    def store_history(self, request: GenerationRequest, folder: str | None) -> tuple[int, int]:
        """Render and tokenise a history into a file in a folder.

        Returns its number, for `GenerationRequest.stored`, and the tokens before its first content.
        Raises InputError, and SessionFileError if the folder (None = that of TMPDIR) takes no file.
        """
        return cast(tuple[int, int], self._call("store_history", request, folder))

    def forget_history(self, number: int) -> None:
        """Remove the file of a stored history."""
        self._call("forget_history", number)

    def reply_opening(self) -> str:
        """Return the text that the chat template puts before a reply; "" if the model has no usable template."""
        return cast(str, self._call("reply_opening"))

    def set_memory(self, ceiling_bytes: int) -> Plan:
        """Go under another ceiling; returns the plan. Raises CeilingError, ConfigError and SwapError.

        After an error the ceiling is as before.
        """
        self.plan = cast(Plan, self._call("set_memory", ceiling_bytes))
        return self.plan

    def note(self, conversation: Conversation) -> None:
        """Note a conversation, which is cancelled if the engine is closed."""
        self._open.add(conversation)

    def close(self) -> None:
        """End all calls under way, and free everything."""
        self.closed = True
        for conversation in list(self._open):
            conversation.cancelled.set()
        self.channel.close()

    def drop(self) -> None:
        """Free everything, in a finalizer."""
        self.closed = True
        self.channel.drop()

    def new_number(self) -> int:
        """Return a number for a conversation or a reply."""
        return next(self._numbers)

    def new_client(self) -> int:
        """Return a number for a client that is no thread."""
        return NO_THREAD | self.new_number()

    def _call(self, name: str, *arguments: Any) -> Any:
        return self.channel.ask(Call(None, name, arguments))


class Conversation:
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
        engine.note(self)
        self._aborted: Answered | None = None  # takes the end of a reply that was left

    @property
    def stats(self) -> Stats:
        """Figures of the last reply, final at its end, whatever ends it."""
        self._await_end()
        return self._stats

    def reply(
        self,
        request: GenerationRequest | RewindRequest,
        progress: ProgressCallback | None,
        client: int | None = None,
    ) -> Generator[str | Answered, None, None]:
        """Read a prompt and yield the text of its reply in pieces; works only while it is iterated.

        Once `cancelled` is set, it ends at the next block or token. Raises InputError or SessionError before anything
        is read.

        client: who waits for it, and is given the box of each answer before; None = the thread that iterates
        """
        engine = self._engine
        self._aborted = None  # what was left ends before this begins
        number = engine.new_number()
        plan = engine.plan
        self._stats = stats = Stats(budget_cells=plan.budget_cells, even_cells=plan.even_cells)
        if self.cancelled.is_set():
            stats.finish_reason = "cancelled"
            return
        has_files = isinstance(request, GenerationRequest) and any(isinstance(part, Path) for part in request.content)
        folder = os.getcwd() if has_files and engine.worker_pid is not None else None
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

    def snapshot(self) -> Snapshot:
        """Copy the whole state. Raises CeilingError if the copy has no room; no reply may be under way."""
        return cast(Snapshot, self._call("snapshot"))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. Raises SessionError for one of another runtime or system message, or without a log."""
        if self._engine.worker_pid is not None:
            self._call("check_room", snapshot.nbytes)
        self._call("restore", snapshot)

    def turns(self, first: int, n: int) -> list[Turn]:
        """Return at most n turns of the log from turn `first` on. Raises SessionError if there is no log."""
        return cast(list[Turn], self._call("turns", first, n))

    def pieces(self, start: int, stop: int, control: bool) -> list[bytes]:
        """Return the bytes of each token in [start, stop) of the log. control: with the names of control tokens"""
        return cast(list[bytes], self._call("pieces", start, stop, control))

    def common_prefix_length(self, request: GenerationRequest) -> int:
        """Return the length of the longest common prefix of a history and the log.

        Raises the errors that `reply` raises before it reads a token.
        """
        return cast(int, self._call("common_prefix_length", request))

    @property
    def n_logged(self) -> int:
        """Tokens of the log, and generated tokens that are not fed yet. Raises SessionError if there is no log."""
        return cast(int, self._call("n_logged"))

    def save(self, path: Path, compress: bool, archive: bool) -> None:
        """Write the whole state to a file, by an absolute path. Raises SessionFileError; no reply may be under way."""
        self._call("save", path, compress, archive)

    @property
    def n_past(self) -> int:
        """Tokens read and generated so far, as of the end of the last call, piece or block."""
        return cast(int, self._look("n_past"))

    @property
    def n_cells(self) -> int:
        """Cells used per head, as of then."""
        return cast(int, self._look("n_cells"))

    @property
    def n_recallable(self) -> int:
        """Tokens with archived rows and no cell, on average over heads, as of the end of the last call."""
        return cast(int, self._look("n_recallable"))

    @property
    def n_exceeded(self) -> int:
        """Number of checks that found the process over its ceiling."""
        return cast(int, self._look("n_exceeded"))

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

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions of the tokens that one (layer, KV head) still holds, (n,) ascending; means hold none."""
        return cast("npt.NDArray[np.int32]", self._call("kept_positions", layer, head))

    def coverage(self) -> Coverage:
        """Return the coverage: the number of heads that hold each token."""
        return cast(Coverage, self._call("coverage"))

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left, per layer and head; 0 before the first one."""
        return cast(list[list[int]], self._call("budgets"))

    def _await_end(self) -> None:
        """Wait until a reply that was left has ended, and take its figures."""
        while (aborted := self._aborted) is not None:
            with suppress(EdgeKVError):  # the runtime was closed, or its worker has died
                part = aborted.get()
                if part.stats is not None:
                    self._stats = part.stats
            self._aborted = None

    def _look(self, name: str) -> Any:
        self._await_end()
        return self._engine.channel.look(self.number, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._engine.channel.ask(Call(self.number, name, arguments))


class _Left:
    """Ends a reply in the loop when its client is gone, whatever ended that, and wherever it was interrupted."""

    def __init__(self, conversation: Conversation, number: int) -> None:
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
