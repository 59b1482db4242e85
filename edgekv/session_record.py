"""The record of a session: its figures, its turns and their text, and the tokens that still have cells."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from typing import cast

import numpy as np
import numpy.typing as npt

from .arguments import path_of
from .conversations.coverage import Coverage, Shaded
from .errors import ConfigError
from .held_conversation import HeldConversation
from .store.log import Turn, joined
from .store.transcript import write_transcript

TURNS_AT_ONCE = 256  # turns a request, as a log may be long
TOKENS_AT_ONCE = 4096


class SessionRecord(HeldConversation):
    """The figures, turns and texts of a conversation, and the cells that it holds."""

    @property
    def n_past(self) -> int:
        """Tokens read and generated so far."""
        self._begin()
        return cast(int, self._look("n_past"))

    @property
    def n_cells(self) -> int:
        """Cells used per head."""
        self._begin()
        return cast(int, self._look("n_cells"))

    @property
    def n_recallable(self) -> int:
        """Tokens with archived rows and no cell, on average over heads, as of the end of the last call."""
        self._begin()
        return cast(int, self._look("n_recallable"))

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions of the tokens that one (layer, KV head) still holds, (n,) ascending."""
        for name, number in (("layer", layer), ("head", head)):
            if isinstance(number, bool) or not hasattr(number, "__index__"):
                raise ConfigError(f"{name}={number!r} is no number; give a whole number from 0 on")
        return cast("npt.NDArray[np.int32]", self._call("kept_positions", layer, head))

    @property
    def n_exceeded(self) -> int:
        """Number of checks that found the process over its ceiling."""
        return cast(int, self._look("n_exceeded"))

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left in each head of each layer; 0 before the first one.

        Within a reply these are more than the budget, by what was recalled for it.
        """
        return cast("list[list[int]]", self._call("budgets"))

    def turns(self, *, apart: bool = False) -> Iterator[Turn]:
        """Yield the turns of the log as `Turn(role, start, stop)`, without tokens that the chat template puts between.

        apart: texts that `read` began a turn with come before the rest of that turn, as turns of their own

        Raises SessionError without a history, or during a reply.
        """
        return self._turns_apart() if apart else joined(self._turns_apart())

    def _turns_apart(self) -> Iterator[Turn]:
        first = 0
        while True:
            with self.alone():
                some: list[Turn] = self._call("turns", first, TURNS_AT_ONCE)
            yield from some
            first += len(some)
            if len(some) < TURNS_AT_ONCE:
                return

    def text(self, turn: Turn | None = None) -> Iterator[str]:
        """Yield the text of a turn in pieces; None = all text, with the chat template, as the model saw it.

        Raises SessionError without a history, or during a reply.
        """
        _check_turn(turn)
        with self.alone():
            start, stop = (0, self._call("n_logged")) if turn is None else (turn.start, turn.stop)
        pieces = (b"".join(some) for some in self._pieces(start, stop, turn is None))
        yield from codecs.iterdecode(pieces, "utf-8", "replace")

    def kept(self, turn: Turn | None = None) -> Iterator[Shaded]:
        """Yield the text of a turn, or all text that the model saw, in runs `Shaded(text, shade)` of equal shade.

        The shades are those of the cells when this begins. A generated token that is not fed yet has no cells, and is
        left out.

        Raises SessionError without a history, or during a reply.
        """
        _check_turn(turn)
        with self.alone():
            start, stop = (0, self._call("n_logged")) if turn is None else (turn.start, turn.stop)
            stop = min(stop, self.n_past)
            coverage: Coverage = self._call("coverage")
        yield from coverage.shaded(self._pieces(start, stop, turn is None), start)

    def _pieces(self, start: int, stop: int, control: bool) -> Iterator[list[bytes]]:
        """Yield the bytes of each token in [start, stop) of the log, TOKENS_AT_ONCE at a time."""
        for first in range(start, stop, TOKENS_AT_ONCE):
            with self.alone():
                pieces = self._call("pieces", first, min(stop, first + TOKENS_AT_ONCE), control)
            yield pieces

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write roles and texts of all turns to a file, as Markdown (.md) or JSON (.json).

        Raises SessionError without a history or during a reply, ConfigError for another ending, and SessionFileError if
        the file cannot be written. Whatever had that name before is then untouched.
        """
        write_transcript(path_of("path", path), ((turn.role, self.text(turn)) for turn in self.turns()))


def _check_turn(turn: Turn | None) -> None:
    if turn is not None and not isinstance(turn, Turn):
        raise ConfigError(f"turn={turn!r} is no turn; give one that `turns` yields, or None for all")
