"""Folders of kept sessions: a journal of what was read and said, beside files of rows.

The first record of the journal says what the session is of. Each later one has `rows`, and `said` with what it adds:

    first, tokens     the log goes on after `first` tokens with so many others; the numbers hold them, and marks (k, 3)
    said, title       state of the conversation after them (`conversations.session_codec`)
    n_cells           cells of a head
    rows              {"end": positions before it have rows, "parts": [[file, first position, byte], ...]}, or null

A record without `said` is the beginning of the next one, or says that rows after `end` are being overwritten.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .atomic_write import SUFFIX as PART
from .journal import MAX_NUMBERS, Journal, Use
from .log import TokenLog
from .snapshot_header import MAX_TOKEN, SnapshotHeader, is_whole

JOURNAL = "journal"


class Newest(NamedTuple):
    """The newest state in a journal.

    header: values of the first record
    said: values of the newest record with a state; None = nothing was read yet
    rows: the newest values of rows; None = there are none
    n_past: tokens of the log
    n_records: records up to there
    ended: a turn had ended, or nothing was read yet
    """

    header: SnapshotHeader
    said: SnapshotHeader | None
    rows: SnapshotHeader | None
    n_past: int
    n_records: int
    ended: bool


def is_kept(path: Path) -> bool:
    """Return True if a path is the folder of a kept session."""
    return (path / JOURNAL).is_file()


def open_journal(path: Path, use: Use) -> Journal:
    """Open the journal of a kept session. Raises SessionFileError."""
    return Journal(path / JOURNAL, repr(str(path)), use)


def newest(journal: Journal) -> Newest:
    """Return the newest state, and cut what was being written after it. Raises SessionFileError."""
    header = said = rows = None
    n_past = n_records = n_bytes = 0
    ended = True
    for i, record in enumerate(journal.records(), 1):
        values = record.values
        if header is None:
            header = values
        elif "said" in values.values:
            said, n_past = values, _first(values) + _n_tokens(values, len(record.numbers))
            ended = record.ends
        elif "rows" not in values.values:
            continue
        if i > 1:
            rows = values.inner("rows")
        n_records, n_bytes = i, journal.n_bytes
    if header is None:
        raise journal.damaged("it has no record")
    journal.cut(n_bytes)
    return Newest(header, said, rows, n_past, n_records, ended)


def fill_log(journal: Journal, n_records: int, log: TokenLog) -> None:
    """Fill an empty log with that of the first records. Raises SessionFileError."""
    for record in islice(journal.records(), 1, n_records):
        if "first" in record.values.values:
            first, n = _first(record.values), _n_tokens(record.values, len(record.numbers))
            if first > len(log):
                raise journal.damaged("its log has a gap")
            log.change(first, record.numbers[:n], record.numbers[n:].reshape(-1, 3))


def changes(log: TokenLog) -> Iterator[tuple[dict[str, int], npt.NDArray[np.int32]]]:
    """Yield the values and numbers of records for what has changed in a log, at least one."""
    for first, tokens, marks in log.changes():
        yield {"first": first, "tokens": len(tokens)}, np.concatenate([tokens, marks.reshape(-1)])


def described(path: Path) -> dict[str, Any]:
    """Return what a session says about itself now, like the header of a saved one. Raises SessionFileError.

    Nothing but its form is checked.
    """
    with closing(open_journal(path, "look")) as journal:
        found = newest(journal)
    saved_with = found.header.values.get("saved_with")
    said = {} if found.said is None else found.said.values
    if isinstance(saved_with, dict):
        saved_with = saved_with | {"n_past": found.n_past, "n_cells": said.get("n_cells", 0)}
    return {**found.header.values, "saved_with": saved_with, "title": said.get("title", "")}


def was_stopped(path: Path) -> bool:
    """Return True if a kept session was stopped in the midst of a turn, as by a kill. Raises SessionFileError."""
    with closing(open_journal(path, "look")) as journal:
        return not newest(journal).ended


def check_unused(path: Path) -> None:
    """Raise SessionFileError if somebody has a kept session open."""
    open_journal(path, "append").close()


def remove_kept(path: Path) -> None:
    """Remove a kept session. Raises SessionFileError if another process has it open, and OSError."""
    with closing(open_journal(path, "append")):
        os.unlink(path / JOURNAL)  # what is left is no session
    shutil.rmtree(path)


def remove_session(path: Path) -> None:
    """Remove a session, a file or a folder. Raises SessionFileError if another process has it open, and OSError."""
    if is_kept(path):
        remove_kept(path)
    else:
        path.unlink()


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of sessions that they began, or removed."""
    for path in folder.glob("*.session"):
        with suppress(OSError):
            if path.is_dir() and all(it.name.startswith("rows-") or it.name.endswith(PART) for it in path.iterdir()):
                shutil.rmtree(path)


def bytes_of(path: Path) -> int:
    """Return the bytes of a session, a file or a folder; of files that it shares its part."""
    found = [file.stat() for file in (path.iterdir() if path.is_dir() else [path])]
    return sum(it.st_size // it.st_nlink for it in found)


def _first(values: SnapshotHeader) -> int:
    return int(values.value("first", lambda it: is_whole(it, MAX_TOKEN)))


def _n_tokens(values: SnapshotHeader, n_numbers: int) -> int:
    fits = values.value("tokens", lambda it: is_whole(it, min(n_numbers, MAX_NUMBERS)) and (n_numbers - it) % 3 == 0)
    return int(fits)
