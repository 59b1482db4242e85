"""The engine in this process."""

from __future__ import annotations

from pathlib import Path

from edgekv.planning.choice import Request

from .conversation import LocalConversation
from .line import Line
from .loaded import Loaded


class LocalEngine(Loaded):
    """An `Engine` whose native side runs in this process. Raises what `Runtime` does."""

    worker_pid = None

    def __init__(self, path: Path, request: Request, mark: bytes | None = None) -> None:
        super().__init__(path, request, mark)
        self.line = Line()

    def converse(self, system: str | None) -> LocalConversation:
        """A new conversation. It has the cells if they are free."""
        conversation = LocalConversation(self, system)
        with self.line.place(conversation) as place:
            if place.enter_if_free():
                self.cells.offer(conversation.tenant)
        return conversation

    def sweep(self) -> None:
        """Free what closed conversations left."""
        self.cells.sweep()

    def close(self) -> None:
        """End what is under way, and free the model and its cells."""
        self.line.close()
        super().close()
