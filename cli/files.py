"""Text files as they are named on a command line; `-` is standard input."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def piped() -> list[Path]:
    """Standard input as a file, where something is piped in and no file is named."""
    return [] if sys.stdin is None or sys.stdin.isatty() else [Path("-")]


@contextmanager
def on_disk(path: Path) -> Iterator[Path]:
    """The file itself; for `-`, a copy of standard input on disk, since a prompt is read twice: counted, then fed."""
    if str(path) != "-":
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="edgekv-stdin-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)
