"""Text files as they are named on a command line; `-` is standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import cast

from edgekv.documents.formats import format_of
from edgekv.prompt.spool import rereadable, spooled
from edgekv.prompt.text import decoded

from .found_files import found_files
from .render import console, say

STDIN = "standard input"
PATIENCE_S = 1.0  # seconds before the command says that it waits


@contextmanager
def text_files(named: Sequence[Path] | None) -> Iterator[list[Path]]:
    """Yield the files to read: `found_files`. If none is named, that is standard input, if it is a pipe or a file.

    If files are named and none of them is `-`, standard input is not read. The command says so when it reads it.
    Raises InputError for a `-` without a text in it; nobody asked for an empty pipe, so that is no file.
    """
    with ExitStack() as stack:
        if not named:
            named = [Path("-")] if _is_offered() else []
        files = found_files(named)
        yield [stack.enter_context(_standard_input() if str(path) == "-" else as_text(path)) for path in files]


@contextmanager
def as_text(path: Path) -> Iterator[Path]:
    """Yield a text file: the path, or the text of a document, which is converted now. The command says so."""
    with ExitStack() as stack:
        if format_of(path) is not None:
            document, path = path, stack.enter_context(rereadable(path))
            say(f"{document} is converted: {path.stat().st_size:,} bytes of text")
        yield path


@contextmanager
def _standard_input() -> Iterator[Path]:
    """A copy of standard input on disk, since a prompt is read twice: counted, then fed."""
    with spooled(decoded(sys.stdin.buffer, STDIN)) as copy:
        console.print(f"[dim]read {copy.stat().st_size:,} bytes from {STDIN}[/dim]", soft_wrap=True)
        yield copy


def _is_offered() -> bool:
    """Return True if something comes through standard input. Waits for an open pipe."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # replaced by something that is no file
        return False
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)):
        return False
    with suppress(OSError):  # `select` takes sockets alone on Windows
        if not select.select([sys.stdin], [], [], PATIENCE_S)[0]:
            console.print(
                f"[dim]waiting for {STDIN}; name files with -f, or add </dev/null, if there is none[/dim]",
                soft_wrap=True,
            )
    return bool(cast(BufferedReader, sys.stdin.buffer).peek(1))
