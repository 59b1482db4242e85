"""Names of files, as the model is told them: a line before each text, so that a reply can name a file."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

File: TypeAlias = str | os.PathLike[str]

NAME_CHARS = 200  # a longer name loses its beginning
NO_TEXT = "\ufffd"  # stands for a character of a name that no line of text has


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A text file that the model is told by this name, even if it is the only one; "" = it has no name.

    It is a path (`os.PathLike`).
    """

    path: Path
    name: str

    def __fspath__(self) -> str:
        return os.fspath(self.path)


def named_files(files: Sequence[File]) -> list[File]:
    """Return files, with names if they are several. One file alone has none: its text is all there is."""
    if len(files) < 2:
        return [*files]
    paths = [os.path.abspath(file) for file in files if not isinstance(file, NamedFile)]
    names = iter(short_names(paths))
    return [file if isinstance(file, NamedFile) else NamedFile(Path(file), next(names)) for file in files]


def contents_of(files: Sequence[File]) -> list[tuple[str | Path, ...]]:
    """Return the content of each file: its path, after a line with its name if it has one (`named_files`)."""
    return [
        (f"[file {_line(file.name)}]\n", Path(file)) if isinstance(file, NamedFile) and file.name else (Path(file),)
        for file in named_files(files)
    ]


def short_names(paths: Sequence[File]) -> list[str]:
    """Return names of files: their paths, without the folders that all of them are in."""
    whole = [os.path.abspath(path) for path in paths]
    try:
        folder = os.path.commonpath([os.path.dirname(path) for path in whole]) if whole else ""
    except ValueError:  # they are on several drives
        return whole
    return [Path(os.path.relpath(path, folder)).as_posix() for path in whole]


def _line(name: str) -> str:
    """Return a name as text of one line. A name is a stranger's text, which may hold anything."""
    name = "".join(it if it.isprintable() else NO_TEXT for it in unicodedata.normalize("NFC", name))
    return name if len(name) <= NAME_CHARS else f"...{name[-NAME_CHARS:]}"
