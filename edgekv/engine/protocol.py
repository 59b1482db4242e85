"""The interfaces that runtimes and sessions use; implemented for this process (`local`) and for a worker (`worker`)."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgekv.planning.estimate import Plan
from edgekv.store.log import Turn

from .coverage import Coverage
from .request import GenerationRequest, Logging, ProgressCallback, RewindRequest
from .snapshot import Snapshot
from .stats import Stats
from .turn_queue import TurnQueue


class Conversation(Protocol):
    """What was read and said in one session, and the cells that hold it. Its engine must be open."""

    stats: Stats
    cancelled: threading.Event

    @property
    def system(self) -> str | None:
        """The message that it never evicts, if it has one."""

    def reply(
        self, request: GenerationRequest | RewindRequest, progress: ProgressCallback | None
    ) -> Generator[str, None, None]:
        """Read a prompt and yield the text of each generated token, empty while a character is incomplete.

        Works only while it is iterated; between two pieces another conversation may have the cells. Once `cancelled` is
        set, it ends at the next block or token. `stats` are final when it ends, however it ends. Raises InputError or
        SessionError before anything is read.
        """

    def snapshot(self) -> Snapshot:
        """All that it has read and said. Raises CeilingError where that has no room; no reply may be under way."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. Raises SessionError for one of another runtime or system message, or without a log."""

    def turns(self, first: int, n: int) -> list[Turn]:
        """At most n turns of the log from turn `first` on. Raises SessionError where there is no log."""

    def pieces(self, start: int, stop: int, control: bool) -> list[bytes]:
        """What each token in [start, stop) of the log stands for. control: with the names of control tokens"""

    def common_prefix_length(self, request: GenerationRequest) -> int:
        """How many tokens of a history the log begins with. Raises what answering it would before anything is read."""

    @property
    def n_logged(self) -> int:
        """Tokens of the log, and those that were said and not fed yet. Raises SessionError where there is no log."""

    def save(self, path: Path) -> None:
        """Write all of it to a file, by an absolute path. Raises SessionFileError; no reply may be under way."""

    @property
    def n_past(self) -> int:
        """Tokens read and said so far."""

    @property
    def n_cells(self) -> int:
        """Cells used per head."""

    @property
    def n_exceeded(self) -> int:
        """How often the process was found over its ceiling."""

    def close(self) -> None:
        """Have it forgotten, in any state, at the engine's next use. From any thread, and in the midst of any call."""

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions that one (layer, KV head) still holds, (n_cells,) ascending."""

    def coverage(self) -> Coverage:
        """How many heads hold each token."""

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left, per layer and head; 0 before the first one."""


class Engine(Protocol):
    """A loaded model and its cells, which one conversation has at a time, while the others rest.

    mark: what its snapshots carry
    turn_queue: says whose turn it is. Everything but `n_past`, `n_cells` and `n_exceeded` needs the cells, and is done
        by the caller whose turn it is
    """

    plan: Plan
    mark: bytes
    turn_queue: TurnQueue

    @property
    def closed(self) -> bool:
        """Whether everything was freed."""

    @property
    def worker_pid(self) -> int | None:
        """The process that it runs in; None = this one."""

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> Conversation:
        """A new conversation. Raises BudgetError where the system message leaves no cells.

        logging: keeps a log; raises SessionFileError where the disk does not take it, ConfigError for too small a cap
        """

    def load_conversation(
        self, path: Path, instead_of: Conversation | None = None, *, keeps_log: bool = True
    ) -> Conversation:
        """The conversation of a session file, by an absolute path, which takes over the cells. For who has the turn.

        instead_of: whose cells it may take, where these have no room to rest
        keeps_log: it keeps a log if the file has one

        Raises SessionFileError, BudgetError or CeilingError where it cannot be gone on with, and SwapError; the
        cells are as before.
        """

    def tokenize(self, text: str, begin: bool, special: bool) -> list[int]:
        """Tokens of a text. begin: with what the model wants before one; special: names of control tokens are these"""

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text of tokens. Raises InputError for ids that the vocabulary lacks."""

    def count(self, request: GenerationRequest) -> int:
        """Tokens of a history. Raises InputError."""

    def reply_opening(self) -> str:
        """What the chat template puts before a reply; "" where there is no template that can be used."""

    def reap(self) -> None:
        """Free what closed conversations left. For who has the turn."""

    def close(self) -> None:
        """Free everything."""
