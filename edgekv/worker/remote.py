"""The engine of an isolated runtime: all of its work happens in a worker process."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Generator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from edgekv.engine.opened import Opened
from edgekv.errors import EdgeKVError, WorkerError
from edgekv.generation.request import GenerationRequest, Logging, Progress, ProgressCallback, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.planning.alternatives import Survey
from edgekv.planning.choice import Request
from edgekv.planning.plan import Plan
from edgekv.sessions.protocol import Conversation
from edgekv.sessions.snapshot import Snapshot, new_mark
from edgekv.sessions.turn_queue import TurnQueue

from .pipe_messages import (
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
from .worker_process import Worker


class _Forwarding:
    """Forwards attributes to the object of this name in the worker, which has the same protocol.

    values, methods: names of its properties and methods
    """

    values: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name in self.values:
            return self._call(name)
        if name in self.methods:
            return partial(self._call, name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return a property of the worker's object, or the result of one of its methods."""
        raise NotImplementedError


class WorkerEngine(_Forwarding, Opened):
    """An `Engine` in a worker process. Raises the errors of `LocalEngine`, and WorkerError."""

    methods = frozenset(
        {"tokenize", "text_of", "pieces_of", "count", "prompt_text", "reply_opening", "store_history", "forget_history"}
    )

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

    @property
    def alive(self) -> bool:
        """False once the worker has ended."""
        return self._worker.alive

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

    def set_memory(self, ceiling_bytes: int) -> Plan:
        """Have the worker go under another ceiling; returns its plan."""
        self.plan = self._call("set_memory", ceiling_bytes)
        return self.plan

    def reap(self) -> None:
        """Have the worker forget closed conversations. One stays in the list until the worker has said that it has."""
        with suppress(IndexError, ValueError, WorkerError):  # no more are left, a thread beside took it; it died
            while True:
                released = self._released[0]
                released.end_unfinished()
                self.ask(Close(released.number))
                self._released.remove(released)

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

    def _call(self, name: str, *arguments: Any) -> Any:
        return self.ask(Call(None, name, arguments))


class WorkerConversation(_Forwarding):
    """A `Conversation` in the worker."""

    values = frozenset({"system", "n_past", "n_cells", "n_recallable", "n_exceeded", "n_logged"})
    methods = frozenset({"kept_positions", "budgets", "coverage", "turns", "pieces", "common_prefix_length"})

    def __init__(self, engine: WorkerEngine, number: int) -> None:
        self.stats = Stats()
        self.cancelled = threading.Event()
        self._engine = engine
        self.number = number
        self._unfinished: int | None = None  # number of the open reply in the worker; None = no reply is open

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

    def save(self, path: Path, compress: bool) -> None:
        """Have the worker write the whole state to a file."""
        self.end_unfinished()
        self._call("save", path, compress)

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
