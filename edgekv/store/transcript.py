"""Transcripts for people and programs, written piece by piece: Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from edgekv.errors import ConfigError, SessionFileError

from .atomic_write import atomic_write

FORMATS = (".md", ".json")


def names_format(path: Path) -> bool:
    """Return True if a path ends as a transcript does, in capitals or not."""
    return path.suffix.lower() in FORMATS


def write_transcript(path: Path, turns: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Write roles and texts of turns: Markdown for a path in .md, {"messages": [{"role", "content"}, ...]} for .json.

    Raises ConfigError for another ending, SessionFileError if it cannot be written. An earlier file then stays.
    """
    if not names_format(path):
        raise ConfigError(f"path={str(path)!r} says no format; let it end in {' or '.join(FORMATS)}")
    pieces = _markdown(turns) if path.suffix.lower() == ".md" else _json(turns)
    try:
        with atomic_write(path) as file:
            for piece in pieces:
                file.write(piece.encode("utf-8", "replace"))
    except OSError as error:
        raise SessionFileError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; name a file in a folder with room"
        ) from error


def _markdown(turns: Iterable[tuple[str, Iterable[str]]]) -> Iterable[str]:
    for i, (role, pieces) in enumerate(turns):
        yield f"{chr(10) if i else ''}## {role.capitalize()}\n\n"
        yield from pieces
        yield "\n"


def _json(turns: Iterable[tuple[str, Iterable[str]]]) -> Iterable[str]:
    yield '{"messages": ['
    for i, (role, pieces) in enumerate(turns):
        yield f'{"," if i else ""}\n{{"role": {json.dumps(role)}, "content": "'
        yield from (json.dumps(piece, ensure_ascii=False)[1:-1] for piece in pieces)
        yield '"}'
    yield "\n]}\n"
