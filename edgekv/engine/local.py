"""The engine in this process."""

from __future__ import annotations

from .conversation import LocalConversation
from .loaded import Loaded


class LocalEngine(Loaded):
    """An `Engine` whose native side runs in this process. Raises what `Runtime` does."""

    worker_pid = None

    def converse(self, system: str | None) -> LocalConversation:
        """A new conversation in empty cells."""
        self.controller.clear()
        return LocalConversation(self, system)
