"""Conversations on the disk, each in a folder of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from PySide6.QtCore import QSaveFile

import edgekv


@dataclass(frozen=True)
class Turn:
    """A question, its files, and the reply."""

    text: str
    files: tuple[str, ...] = ()
    reply: str = ""


class Conversation:
    """A conversation on the disk: turns.json for the window, and N.session for the model after N turns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.turns: list[Turn] = []
        if self._texts.exists():
            self.turns = [Turn(**turn) for turn in json.loads(self._texts.read_text(encoding="utf-8"))]

    @property
    def title(self) -> str:
        """Return the first words of the first question."""
        return self.turns[0].text[:40] if self.turns else "New conversation"

    @property
    def session(self) -> Path | None:
        """The file that the model goes on with; None = it begins."""
        return self._session_after(len(self.turns)) if self.turns else None

    def save(self, turn: Turn, session: edgekv.Session) -> None:
        """Write another turn, which the session has answered. Whenever the program ends, the two files fit each other.

        Raises SessionFileError and OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        turns = [*self.turns, turn]
        session.save(self._session_after(len(turns)))
        file = QSaveFile(str(self._texts))
        file.open(QSaveFile.OpenModeFlag.WriteOnly)
        file.write(json.dumps([asdict(turn) for turn in turns]).encode())
        if not file.commit():
            raise OSError(f"{self._texts} cannot be written: {file.errorString()}")
        self._session_after(len(turns) - 1).unlink(missing_ok=True)

    @property
    def _texts(self) -> Path:
        return self.folder / "turns.json"

    def _session_after(self, n_turns: int) -> Path:
        return self.folder / f"{n_turns}.session"


def saved(folder: Path) -> Iterator[Conversation]:
    """Return the conversations of a folder, the newest first."""
    texts = sorted(folder.glob("*/turns.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return (Conversation(path.parent) for path in texts)


def new(folder: Path) -> Conversation:
    """One that has not begun. It has no file yet."""
    return Conversation(folder / uuid.uuid4().hex)
