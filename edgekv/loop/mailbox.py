"""A box that the answer to one message comes to, from another thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from .loop_messages import Raised

# seconds of a wait after which an interrupt is looked for; None = one ends the wait by itself
INTERRUPT_S = 0.05 if sys.platform == "win32" else None


class Mailbox:
    """Takes the answer to one message."""

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
