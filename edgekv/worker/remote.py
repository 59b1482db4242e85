"""The engine of an isolated runtime: all of its work happens in a worker process."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.engine.opened import Opened
from edgekv.errors import EdgeKVError, WorkerError
from edgekv.generation.request import GenerationRequest, Logging, Progress, ProgressCallback, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.planning.alternatives import Survey
from edgekv.planning.choice import Request
from edgekv.planning.estimate import Plan
from edgekv.sessions.coverage import Coverage
from edgekv.sessions.protocol import Conversation
from edgekv.sessions.snapshot import Snapshot, new_mark
from edgekv.sessions.turn_queue import TurnQueue
from edgekv.store.log import Turn

from .messages import (
    Abort,
    Call,
    Close,
    Ended,
    Estimate,
    Load,
    LoadConversation,
    NewConversation,
    Next,
    Reply,
    encode,
    pack,
)
from .process import Worker


class WorkerEngine(Opened):
    """An `Engine` in a worker process. Raises the errors of `LocalEngine`, and WorkerError."""

    def __init__(self, path: Path, request: Request) -> None:
        self.turn_queue = TurnQueue()
        self.mark = new_mark()
        load = Load(path, pack(request), self.mark)
        self._worker = Worker(request.options.servers)
        try:
            self.plan: Plan = self._worker.ask(load)
        except BaseException:
            self._worker.close()
            raise
        self._numbers = itertools.count(1)
        self._released: deque[WorkerConversation] = deque()  # conversations that the worker may forget
        self.opened()

    @property
    def worker_pid(self) -> int:
        """The process id of the worker."""
        return self._worker.pid

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> WorkerConversation:
        """Begin a conversation. It takes the cells if they are free."""
        self.reap()
        number = self.new_number()
        self.ask(NewConversation(number, system, logging))
        return WorkerConversation(self, number)

    def load_conversation(
        self, path: Path, instead_of: Conversation | None = None, *, keeps_log: bool = True
    ) -> WorkerConversation:
        """Load the conversation of a session file, which the worker reads itself."""
        self.reap()
        replaced = None
        if isinstance(instead_of, WorkerConversation):
            instead_of.end_unfinished()
            replaced = instead_of.number
        number = self.new_number()
        self.ask(LoadConversation(number, path, replaced, keeps_log))
        return WorkerConversation(self, number)

    def tokenize(self, text: str, begin: bool, special: bool) -> list[int]:
        """Return the tokens of a text.

        begin: with the tokens that the model expects before a text
        special: read names of control tokens as these tokens
        """
        tokens: list[int] = self.ask(Call(None, "tokenize", (text, begin, special)))
        return tokens

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Raises InputError for ids that the vocabulary lacks."""
        return str(self.ask(Call(None, "text_of", (tokens,))))

    def count(self, request: GenerationRequest) -> int:
        """Return the number of tokens of a history. Raises InputError."""
        return int(self.ask(Call(None, "count", (request,))))

    def reply_opening(self) -> str:
        """Return the text that the chat template puts before a reply; "" if the model has no usable template."""
        return str(self.ask(Call(None, "reply_opening")))

    def reap(self) -> None:
        """Have the worker forget closed conversations."""
        with suppress(IndexError, WorkerError):  # no more are left, or the worker died
            while True:
                released = self._released.popleft()
                released.end_unfinished()
                self.ask(Close(released.number))

    def release_later(self, conversation: WorkerConversation) -> None:
        """Have the worker forget a conversation at the next use."""
        self._released.append(conversation)

    def close(self) -> None:
        """End the process."""
        self.closed = True
        self._worker.close()
        self.turn_queue.close(wait=False)  # a call at work finds the process gone

    def new_number(self) -> int:
        """Return a number for a conversation or a reply."""
        return next(self._numbers)

    def ask(self, message: object) -> Any:
        """Return the worker's answer."""
        return self._worker.ask(message)


class WorkerConversation:
    """A `Conversation` in the worker."""

    def __init__(self, engine: WorkerEngine, number: int) -> None:
        self.stats = Stats()
        self.cancelled = threading.Event()
        self._engine = engine
        self.number = number
        self._unfinished: int | None = None  # number of the open reply in the worker; None = no reply is open

    @property
    def system(self) -> str | None:
        """The system message, which is never evicted; None = there is none."""
        system: str | None = self._call("system")
        return system

    @property
    def n_past(self) -> int:
        """Tokens read and generated so far."""
        return int(self._call("n_past"))

    @property
    def n_cells(self) -> int:
        """Cells used per head."""
        return int(self._call("n_cells"))

    @property
    def n_exceeded(self) -> int:
        """Number of checks that found the worker over its ceiling."""
        return int(self._call("n_exceeded"))

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions that one (layer, KV head) still holds, (n_cells,) ascending."""
        kept: npt.NDArray[np.int32] = self._call("kept_positions", layer, head)
        return kept

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left, per layer and head; 0 before the first one."""
        budgets: list[list[int]] = self._call("budgets")
        return budgets

    def coverage(self) -> Coverage:
        """Return the coverage: the number of heads that hold each token."""
        coverage: Coverage = self._call("coverage")
        return coverage

    def turns(self, first: int, n: int) -> list[Turn]:
        """Return at most n turns of the log from turn `first` on. Raises SessionError if there is no log."""
        turns: list[Turn] = self._call("turns", first, n)
        return turns

    def pieces(self, start: int, stop: int, control: bool) -> list[bytes]:
        """Return the bytes of each token in [start, stop) of the log. control: with the names of control tokens"""
        pieces: list[bytes] = self._call("pieces", start, stop, control)
        return pieces

    def common_prefix_length(self, request: GenerationRequest) -> int:
        """Return the length of the longest common prefix of a history and the log."""
        return int(self._call("common_prefix_length", request))

    @property
    def n_logged(self) -> int:
        """Tokens of the log, and generated tokens that are not fed yet. Raises SessionError if there is no log."""
        return int(self._call("n_logged"))

    def snapshot(self) -> Snapshot:
        """Copy the whole state. Raises CeilingError if the worker has no room to send it."""
        self.end_unfinished()
        snapshot: Snapshot = self._call("snapshot")
        return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. Raises SessionError, and CeilingError if the worker has no room to receive it."""
        self.end_unfinished()
        self._call("check_room", snapshot.nbytes)
        self._call("restore", snapshot)

    def save(self, path: Path) -> None:
        """Have the worker write the whole state to a file."""
        self.end_unfinished()
        self._call("save", path)

    def reply(
        self, request: GenerationRequest | RewindRequest, progress: ProgressCallback | None
    ) -> Generator[str, None, None]:
        """Ask for the reply part by part; between two parts the worker waits."""
        self._engine.reap()
        self.end_unfinished()
        self.stats = Stats(finish_reason="failed", budget_cells=self._engine.plan.budget_cells)
        number = self._engine.new_number()
        has_files = isinstance(request, GenerationRequest) and any(isinstance(part, Path) for part in request.content)
        following, cancel = (encode(Next(number, cancelled)) for cancelled in (False, True))
        try:
            part = self._advance(number, Reply(number, self.number, request, os.getcwd() if has_files else None))
            while not isinstance(part, Ended):
                if isinstance(part, str):
                    yield part
                elif progress is not None:
                    progress(part)
                part = self._advance(number, cancel if self.cancelled.is_set() else following)
        except BaseException:  # the reply is no longer iterated, was interrupted, or `progress` raised
            if not sys.is_finalizing():  # at exit nothing can be sent any more, and the worker ends anyway
                with suppress(EdgeKVError):
                    self._finish(self._advance(number, Abort(number)))
            raise
        self._finish(part)
        if part.error is not None:
            raise part.error

    def close(self) -> None:
        """Have the worker forget this conversation at the engine's next use."""
        self._engine.release_later(self)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return a property of the worker's conversation, or the result of one of its methods."""
        return self._engine.ask(Call(self.number, name, arguments))

    def _advance(self, number: int, message: Reply | Abort | bytes) -> str | Progress | Ended:
        """Return the next part of a reply, or its end. message: bytes = an encoded Next"""
        if isinstance(message, Reply):
            self._unfinished = number
        part: str | Progress | Ended = self._engine.ask(message)
        if isinstance(part, Ended) and self._unfinished == number:
            self._unfinished = None
        return part

    def end_unfinished(self) -> None:
        """Cancel a reply that is still open: the session was closed, or an earlier Abort failed."""
        while (number := self._unfinished) is not None:
            self._finish(self._advance(number, encode(Next(number, True))))

    def _finish(self, part: str | Progress | Ended) -> None:
        if isinstance(part, Ended) and part.stats is not None:
            self.stats = part.stats


def plan_in_worker(path: Path, request: Request) -> Plan:
    """Return the plan of an isolated runtime: it counts the worker's memory, and nothing of this process."""
    plan: Plan = _estimate(path, request, around=False)
    return plan


def survey_in_worker(path: Path, request: Request) -> Survey:
    """Return the plan of an isolated runtime, with what else would fit."""
    survey: Survey = _estimate(path, request, around=True)
    return survey


def _estimate(path: Path, request: Request, *, around: bool) -> Any:
    estimate = Estimate(path, pack(request), around)
    with closing(Worker(request.options.servers)) as worker:
        return worker.ask(estimate)
