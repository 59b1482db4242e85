"""The way to a loop, in this process or in a worker: messages go there, and each answer comes to a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from edgekv.cells.loaded_model import LoadedModel


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
