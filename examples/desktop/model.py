"""The model: asked in a thread, so that the window never waits, and held by a worker process, so that it may die."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

from conversations import Conversation, Turn
from PySide6.QtCore import QObject, Signal

import edgekv

NOT_READ = "Stopped before the answer began; the conversation is as it was."
NEW_WORKER = "The process of the model has ended. A new one goes on with what was saved. ({})"


class Model(QObject):
    """Takes jobs from the window, does one after another, and tells by signals how they went.

    Every turn is saved when it ends. So whatever fails is answered in one way: the session is forgotten, or the whole
    runtime, and the next job begins with what was saved.
    """

    loaded = Signal(object)  # a ceiling is in force: its edgekv.Plan
    planned = Signal(object, object)  # what a ceiling would give: its bytes, and an edgekv.Plan or the reason why not
    held = Signal(object)  # who holds the memory now: entries of edgekv.Runtime.ledger
    progressed = Signal(object)  # an edgekv.Progress, while a text is read
    said = Signal(str)  # a piece of the reply
    answered = Signal(object, object)  # the turn, which is saved, and its edgekv.Stats
    failed = Signal(str)  # the job is over, and has changed nothing
    noticed = Signal(str)  # something that the user should know; the job goes on

    def __init__(self, **options: object) -> None:
        """options: of edgekv.Runtime, without memory"""
        super().__init__()
        self._options = options | {"isolated": True}
        self._memory: int | str | None = None
        self._runtime: edgekv.Runtime | None = None
        self._session: edgekv.Session | None = None
        self._conversation: Conversation | None = None  # the conversation of the session
        self._stopped = threading.Event()
        self._jobs = ThreadPoolExecutor(1)
        self._plans = ThreadPoolExecutor(1)  # they need not wait for a reply, and neither do looks

    @property
    def worker_pid(self) -> int | None:
        """The process that holds the model; None = there is none now."""
        return self._runtime.worker_pid if self._runtime else None

    def load(self, memory: int | str, conversation: Conversation) -> None:
        """Put a ceiling in force, for this conversation."""
        self._jobs.submit(self._guarded, partial(self._load, memory, conversation))

    def ask(self, conversation: Conversation, turn: Turn) -> None:
        """Answer a turn."""
        self._stopped.clear()
        self._jobs.submit(self._guarded, partial(self._answer, conversation, turn))

    def stop(self) -> None:
        """End the reply, at the next token or block."""
        self._stopped.set()

    def plan(self, memory: int) -> None:
        """Say what a ceiling would give. Nothing changes."""
        self._plans.submit(self._plan, memory)

    def look(self) -> None:
        """Say who holds the memory now."""
        self._plans.submit(self._look)

    def close(self) -> None:
        """End the worker process, after what is saved now."""
        self.stop()
        self._jobs.submit(self._close)
        self._plans.shutdown(cancel_futures=True)
        self._jobs.shutdown()

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._leave()
            if isinstance(error, edgekv.WorkerError):
                self._close()
                self.failed.emit(NEW_WORKER.format(error))
            else:
                self.failed.emit(str(error))

    def _load(self, memory: int | str, conversation: Conversation) -> None:
        before, self._memory = self._memory, memory
        self._close()
        try:
            self._go_on_with(conversation)
        except edgekv.EdgeKVError:
            self._memory = before
            self._close()
            if before is not None:
                self._go_on_with(conversation)
            raise
        self.loaded.emit(self._runtime.plan)

    def _answer(self, conversation: Conversation, turn: Turn) -> None:
        session = self._go_on_with(conversation)

        def progress(progress: edgekv.Progress) -> None:
            self.progressed.emit(progress)
            if self._stopped.is_set():
                session.cancel()

        pieces = []
        for piece in session.ask(turn.text, turn.files, progress=progress):
            pieces.append(piece)
            self.said.emit(piece)
            if self._stopped.is_set():
                session.cancel()
        if not pieces and session.stats.finish_reason == "cancelled":
            raise edgekv.SessionError(NOT_READ)
        turn = replace(turn, reply="".join(pieces))
        conversation.save(turn, session)
        self.answered.emit(turn, session.stats)

    def _plan(self, memory: int) -> None:
        try:
            self.planned.emit(memory, edgekv.plan(memory=memory, **self._options))
        except edgekv.EdgeKVError as error:
            self.planned.emit(memory, str(error))

    def _look(self) -> None:
        with suppress(edgekv.EdgeKVError):  # the worker has died, or its runtime was closed just now
            if (runtime := self._runtime) is not None:
                self.held.emit(runtime.ledger)

    def _go_on_with(self, conversation: Conversation) -> edgekv.Session:
        """The session of a conversation, in a worker process that lives."""
        try:
            if self._session is not None:
                _ = self._session.n_past  # the worker answers, or is dead
        except edgekv.WorkerError as error:
            self._close()
            self.noticed.emit(NEW_WORKER.format(error))
        if self._runtime is None:
            self._runtime = edgekv.Runtime(memory=self._memory, yields="25%", **self._options)
        if self._conversation is not conversation:
            self._leave()
            saved = conversation.session
            self._session = self._runtime.session() if saved is None else self._runtime.load_session(saved)
            self._conversation = conversation
        return self._session

    def _leave(self) -> None:
        """Forget the session."""
        if self._session is not None:
            self._session.close()
        self._session = self._conversation = None

    def _close(self) -> None:
        """End the worker process."""
        self._leave()
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = None
