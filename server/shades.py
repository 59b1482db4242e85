"""What is kept of a conversation, noted on the disk: it is as long as the conversation, which memory must not hold."""

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


class Shades:
    """What a session keeps of its turns (`Session.kept`), in parts {"turn": i, "role": ..., "runs": [[text, shade]]}.

    They lie in a file without a name, which goes when nobody holds this any more.
    """

    def __init__(self, session: edgekv.Session) -> None:
        """Raises SessionFileError where the disk takes no file, and OSError where it is full."""
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
    """Runs, some at a time."""
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


def shades_of(session: edgekv.Session) -> Shades | None:
    """What a session keeps of its turns; None where the disk has no room for it."""
    try:
        return Shades(session)
    except (OSError, edgekv.SessionFileError) as error:
        log.warning("what is kept of a conversation is not told: %s", error)
        return None
