"""Kept tokens of a conversation, noted on the disk: they may be as many as all tokens, which memory must not hold."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import edgekv
from edgekv.memory.raw_files import write_all
from edgekv.store.temp_array import temp_file

log = logging.getLogger("edgekv.server")

PART_CHARS = 1 << 14  # a part ends with the run that has this one


class CoverageFile:
    """Kept tokens of a session's turns (`Session.kept`), in parts {"turn": i, "role": ..., "runs": [[text, shade]]}.

    The parts lie in a file without a name, which goes when nobody holds this object any more.
    """

    def __init__(self, session: edgekv.Session) -> None:
        """Raises OSError if the disk takes no file, or is full."""
        self._file = temp_file(None)
        weakref.finalize(self, self._file.close)
        for i, turn in enumerate(session.turns()):
            for runs in _parts(session.kept(turn)):
                part = {"turn": i, "role": turn.role, "runs": runs}
                write_all(self._file, memoryview(json.dumps(part).encode() + b"\n"))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._file.seek(0)
        with open(self._file.fileno(), "rb", closefd=False) as lines:
            yield from map(json.loads, lines)


def _parts(runs: Iterable[edgekv.Shaded]) -> Iterator[list[edgekv.Shaded]]:
    """Yield runs, some at a time."""
    some: list[edgekv.Shaded] = []
    n_chars = 0
    for run in runs:
        some.append(run)
        n_chars += len(run.text)
        if n_chars >= PART_CHARS:
            yield some
            some, n_chars = [], 0
    if some:
        yield some


def coverage_of(session: edgekv.Session) -> CoverageFile | None:
    """Return the kept tokens of a session's turns; None if the disk has no room for them."""
    try:
        return CoverageFile(session)
    except (OSError, edgekv.SessionFileError) as error:
        log.warning("what is kept of a conversation is not told: %s", error)
        return None
