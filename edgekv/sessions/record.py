"""The record of a session: its figures, its text, its snapshots and its files."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgekv.generation.stats import Stats
from edgekv.store.log import Turn
from edgekv.store.transcript import write_transcript

from .coverage import Shaded
from .session_handle import SessionHandle
from .snapshot import Snapshot

TURNS_AT_ONCE = 256  # turns a request, as a log may be long
TOKENS_AT_ONCE = 4096


class Record:
    """The part of a `Session` that shows its state: counts, text, kept tokens, and copies."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    @property
    def stats(self) -> Stats:
        """Tokens, times and memory of the last reply, complete when that has ended."""
        return self._handle.conversation.stats

    @property
    def system(self) -> str | None:
        """The system message, which is never evicted; None = there is none."""
        return self._handle.live().system

    @property
    def n_past(self) -> int:
        """Tokens read and generated so far."""
        with self._handle.begun() as conversation:
            return conversation.n_past

    @property
    def n_cells(self) -> int:
        """Cells used per head."""
        with self._handle.begun() as conversation:
            return conversation.n_cells

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions of the tokens that one (layer, KV head) still holds, (n_cells,) ascending."""
        with self._handle.swapped_in() as conversation:
            return conversation.kept_positions(layer, head)

    @property
    def n_exceeded(self) -> int:
        """Number of checks that found the process over its ceiling."""
        return self._handle.live().n_exceeded

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left in each head of each layer; 0 before the first eviction."""
        with self._handle.swapped_in() as conversation:
            return conversation.budgets()

    def turns(self, *, apart: bool = False) -> Iterator[Turn]:
        """Yield the turns of the log as `Turn(role, start, stop)`, without tokens that the chat template puts between.

        apart: texts that `read` began a turn with come before the rest of that turn, as turns of their own

        Raises SessionError without a log, or during a reply.
        """
        return self._turns_apart() if apart else _joined(self._turns_apart())

    def _turns_apart(self) -> Iterator[Turn]:
        first = 0
        while True:
            with self._handle.alone(), self._handle.begun() as conversation:
                some = conversation.turns(first, TURNS_AT_ONCE)
            yield from some
            first += len(some)
            if len(some) < TURNS_AT_ONCE:
                return

    def text(self, turn: Turn | None = None) -> Iterator[str]:
        """Yield the text of a turn in pieces; None = all text, with the chat template, as the model saw it.

        Raises SessionError without a log, or during a reply.
        """
        with self._handle.alone(), self._handle.begun() as conversation:
            start, stop = (0, conversation.n_logged) if turn is None else (turn.start, turn.stop)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for pieces in self._pieces(start, stop, turn is None):
            yield decoder.decode(b"".join(pieces))
        rest = decoder.decode(b"", final=True)
        if rest:
            yield rest

    def kept(self, turn: Turn | None = None) -> Iterator[Shaded]:
        """Yield the text of a turn, or all text that the model saw, in runs `Shaded(text, shade)` of equal shade.

        The shades are those of the cells when this begins. A generated token that is not fed yet has no cells, and is
        left out.

        Raises SessionError without a log, or during a reply.
        """
        with self._handle.alone(), self._handle.swapped_in() as conversation:
            start, stop = (0, conversation.n_logged) if turn is None else (turn.start, turn.stop)
            stop = min(stop, conversation.n_past)
            coverage = conversation.coverage()
        yield from coverage.shaded(self._pieces(start, stop, turn is None), start)

    def _pieces(self, start: int, stop: int, control: bool) -> Iterator[list[bytes]]:
        """Yield the bytes of each token in [start, stop) of the log, TOKENS_AT_ONCE at a time."""
        for first in range(start, stop, TOKENS_AT_ONCE):
            with self._handle.alone() as conversation:
                pieces = conversation.pieces(first, min(stop, first + TOKENS_AT_ONCE), control)
            yield pieces

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write roles and texts of all turns to a file, as Markdown (.md) or JSON (.json).

        Raises SessionError without a log or during a reply, ConfigError for another ending, and SessionFileError if
        the file cannot be written. Whatever had that name before is then untouched.
        """
        write_transcript(Path(path), ((turn.role, self.text(turn)) for turn in self.turns()))

    def snapshot(self) -> Snapshot:
        """Copy the whole state of the session, so that `restore` can go back to it.

        The plan does not count the copy. With an isolated runtime the copy is in this process, not in the worker.
        Raises SessionError while the session is answering. Raises CeilingError, before the copy is made, if it would
        bring the process over its ceiling.
        """
        with self._handle.alone(), self._handle.swapped_in() as conversation:
            return conversation.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of a snapshot, as often as you like.

        Raises SessionError while the session is answering, and for a snapshot of another runtime, of a session with
        another system message, or, with log=True, of one without a log.
        """
        with self._handle.alone(), self._handle.swapped_in() as conversation:
            conversation.restore(snapshot)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole state of the session to a file, for `Runtime.load_session` (docs/sessions.md).

        The file is whole or not there: if this fails, or the process ends, an older file of that name is untouched. It
        takes no memory to speak of, and only its owner can read it.
        Raises SessionFileError if it cannot be written, and SessionError while the session is answering.
        """
        with self._handle.alone(), self._handle.swapped_in() as conversation:
            conversation.save(Path(os.path.abspath(path)))


def _joined(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield turns, with adjacent turns of one role joined."""
    joined: Turn | None = None
    for turn in turns:
        if joined is not None and (joined.role, joined.stop) == (turn.role, turn.start):
            joined = joined._replace(stop=turn.stop)
            continue
        if joined is not None:
            yield joined
        joined = turn
    if joined is not None:
        yield joined
