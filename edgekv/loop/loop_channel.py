"""The way to a loop, in this process or in a worker: messages go there, and each answer comes to a box."""

from __future__ import annotations

import sys
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from edgekv.cells.loaded_model import LoadedModel

from .loop_messages import Raised

# seconds of a wait after which an interrupt is looked for; None = one ends the wait by itself
INTERRUPT_S = 0.05 if sys.platform == "win32" else None


class Mailbox:
    """Takes the answer to one message, from another thread."""

    def __init__(self) -> None:
        self._answers: SimpleQueue[object] = SimpleQueue()
        self._told: Callable[[], object] | None = None

    def put(self, answer: object) -> None:
        """Take the answer. Any thread may call this, once."""
        self._answers.put(answer)
        if self._told is not None:
            self._told()

    def notify(self, call: Callable[[], object]) -> None:
        """Have a function called once the answer is there, from any thread, and at once if it is; perhaps twice."""
        self._told = call
        if not self._answers.empty():
            call()

    def get(self) -> Any:
        """Wait for the answer and return it. Raises the error that it is. An interrupt while waiting loses nothing."""
        while True:
            try:
                answer = self._answers.get(timeout=INTERRUPT_S)
            except Empty:
                continue
            if isinstance(answer, Raised):
                raise answer.error
            return answer


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

    def post(self, message: object, client: int | None = None) -> Mailbox:
        """Post a message, without waiting. Finalizers may call this, too. client: who waits; None = this thread"""

    def request(self, message: object, client: int | None = None) -> Mailbox:
        """Post a message whose answer is waited for. Raises SessionError if this thread cannot wait."""

    def ask(self, message: object) -> Any:
        """Return the answer to a message. Raises its error."""

    def look(self, number: int, name: str) -> Any:
        """Return a value of a conversation that needs no cells."""

    def close(self) -> None:
        """End the loop, and free everything."""

    def drop(self) -> None:
        """End the loop, in a finalizer."""
