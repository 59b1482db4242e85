"""The interfaces that runtimes and sessions use; implemented for this process (`local`) and for a worker (`worker`)."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgekv.planning.estimate import Plan

from .reply import ProgressCallback, Wanted
from .snapshot import Snapshot
from .stats import Stats


class Conversation(Protocol):
    """What was read and said in one session, and the cells that hold it. Its engine must be open."""

    stats: Stats
    cancelled: threading.Event

    def reply(self, wanted: Wanted, progress: ProgressCallback | None) -> Generator[str, None, None]:
        """Read a prompt and yield the text of each generated token, empty while a character is incomplete.

        Works only while it is iterated. Clears `cancelled`; once that is set, ends at the next block or token. `stats`
        are final when it ends, however it ends. Raises InputError or SessionError before anything is read.
        """

    def snapshot(self) -> Snapshot:
        """All that it has read and said. Raises CeilingError where that has no room; no reply may be under way."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. Raises SessionError for one of another runtime or system message."""

    @property
    def n_past(self) -> int:
        """Tokens read and said so far."""

    @property
    def n_cells(self) -> int:
        """Cells used per head."""

    @property
    def n_exceeded(self) -> int:
        """How often the process was found over its ceiling."""

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions that one (layer, KV head) still holds, (n_cells,) ascending."""

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left, per layer and head; 0 before the first one."""


class Engine(Protocol):
    """A loaded model and its cells, for one conversation at a time."""

    plan: Plan

    @property
    def closed(self) -> bool:
        """Whether everything was freed."""

    @property
    def worker_pid(self) -> int | None:
        """The process that it runs in; None = this one."""

    def converse(self, system: str | None) -> Conversation:
        """A new conversation, which takes over the cells. Raises BudgetError where the system message leaves none."""

    def close(self) -> None:
        """Free everything."""
