"""The interfaces of engines and conversations, implemented here (`local_engine`) and for a worker (`worker`)."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgekv.generation.request import GenerationRequest, Logging, ProgressCallback, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.planning.plan import Plan
from edgekv.store.log import Turn

from .coverage import Coverage
from .snapshot import Snapshot
from .turn_queue import TurnQueue


class Conversation(Protocol):
    """One session's prompts and replies, and the cells that hold them. Its engine must be open."""

    stats: Stats
    cancelled: threading.Event

    @property
    def system(self) -> str | None:
        """The system message, which is never evicted; None = there is none."""

    def reply(
        self, request: GenerationRequest | RewindRequest, progress: ProgressCallback | None
    ) -> Generator[str, None, None]:
        """Read a prompt and yield the text of each generated token, empty while a character is incomplete.

        Works only while it is iterated; between two pieces another conversation may have the cells. Once `cancelled` is
        set, it ends at the next block or token. `stats` are final at its end, whatever ends it. Raises InputError or
        SessionError before anything is read.
        """

    def snapshot(self) -> Snapshot:
        """Copy the whole state. Raises CeilingError if the copy has no room; no reply may be under way."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot.

        Raises SessionError for one of another runtime or system message, or without a history.
        """

    def turns(self, first: int, n: int) -> list[Turn]:
        """Return at most n turns of the log from turn `first` on. Raises SessionError if there is no log."""

    def pieces(self, start: int, stop: int, control: bool) -> list[bytes]:
        """Return the bytes of each token in [start, stop) of the log. control: with the names of control tokens"""

    def common_prefix_length(self, request: GenerationRequest) -> int:
        """Return the length of the longest common prefix of a history and the log.

        Raises the errors that `reply` raises before it reads a token.
        """

    @property
    def n_logged(self) -> int:
        """Tokens of the log, and generated tokens that are not fed yet. Raises SessionError if there is no log."""

    def save(self, path: Path, compress: bool) -> None:
        """Write the whole state to a file, by an absolute path. Raises SessionFileError; no reply may be under way."""

    @property
    def n_past(self) -> int:
        """Tokens read and generated so far."""

    @property
    def n_cells(self) -> int:
        """Cells used per head."""

    @property
    def n_recallable(self) -> int:
        """Tokens with archived rows and no cell, on average over heads, as of the end of the last call."""

    @property
    def n_exceeded(self) -> int:
        """Number of checks that found the process over its ceiling."""

    def close(self) -> None:
        """Have the engine forget it, in any state, at its next use. Any thread may call this, at any time."""

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions of the tokens that one (layer, KV head) still holds, (n,) ascending; means hold none."""

    def coverage(self) -> Coverage:
        """Return the coverage: the number of heads that hold each token."""

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left, per layer and head; 0 before the first one."""


class Engine(Protocol):
    """A loaded model and its cells. One conversation has them at a time; the others are swapped out.

    mark: bytes that its snapshots carry
    turn_queue: says whose turn it is. Everything but `n_past`, `n_cells` and `n_exceeded` needs the cells, and is done
        by the caller whose turn it is
    """

    plan: Plan
    mark: bytes
    turn_queue: TurnQueue

    @property
    def closed(self) -> bool:
        """True if everything was freed."""

    @property
    def worker_pid(self) -> int | None:
        """The process id of its worker; None = it runs in this process."""

    @property
    def alive(self) -> bool:
        """False once its worker has ended."""

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> Conversation:
        """Begin a conversation. Raises BudgetError if the system message leaves no cells.

        logging: keep a log; raises SessionFileError if the disk does not take it, and ConfigError for too small a cap
        """

    def load_conversation(
        self, path: Path, instead_of: Conversation | None = None, *, keeps_log: bool = True
    ) -> Conversation:
        """Load the conversation of a session file, by an absolute path, into the cells. The caller must have the turn.

        instead_of: a conversation that gives up its cells, and is not swapped out
        keeps_log: keep the log of the file, if it has one

        Raises SessionFileError, BudgetError or CeilingError if the file does not fit this engine, and SwapError; the
        cells are then as before.
        """

    def tokenize(self, text: str, begin: bool, special: bool) -> list[int]:
        """Return the tokens of a text.

        begin: with the tokens that the model expects before a text
        special: read names of control tokens as these tokens
        """

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Raises InputError for ids that the vocabulary lacks."""

    def pieces_of(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token. Raises InputError for ids that the vocabulary lacks."""

    def count(self, request: GenerationRequest) -> int:
        """Return the number of tokens of a history. Raises InputError."""

    def prompt_text(self, request: GenerationRequest) -> str:
        """Return the text that a history of messages is read as. Raises InputError."""

    def store_history(self, request: GenerationRequest, folder: str | None) -> tuple[int, int]:
        """Render and tokenise a history into a file in a folder.

        Returns its number, for `GenerationRequest.stored`, and the tokens before its first content.
        Raises InputError, and SessionFileError if the folder (None = that of TMPDIR) takes no file.
        """

    def forget_history(self, number: int) -> None:
        """Remove the file of a stored history."""

    def reply_opening(self) -> str:
        """Return the text that the chat template puts before a reply; "" if the model has no usable template."""

    def set_memory(self, ceiling_bytes: int) -> Plan:
        """Go under another ceiling; returns the plan. The caller must have the turn.

        Raises CeilingError, ConfigError and SwapError; the ceiling is then as before.
        """

    def reap(self) -> None:
        """Free the state of closed conversations. The caller must have the turn."""

    def close(self) -> None:
        """Free everything."""
