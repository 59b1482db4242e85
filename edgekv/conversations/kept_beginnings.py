"""Shared beginnings that outlive their engine: each in a folder with its cells, and links to the files of its rows."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgekv.archive.row_files import Rows
from edgekv.archive.row_folder import Part, RowFolder, parts_of_values
from edgekv.archive.session_archive import Archive
from edgekv.archive.stored_rows import row_kind
from edgekv.binding.snapshot_meta import CachedSource
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.loaded_model import LoadedModel
from edgekv.errors import ConfigError, EdgeKVError, SessionFileError
from edgekv.generation.turn_state import Dialogue
from edgekv.store.snapshot_file import open_snapshot_file
from edgekv.store.snapshot_header import MAX_TOKEN, SnapshotHeader, is_whole

from .beginnings import DIGEST_BYTES, BeginningKey, Beginnings
from .session_file import load_session, save_session

log = logging.getLogger("edgekv")

SUFFIX = ".beginning"
CELLS = "cells"  # name of the file that is written last


class KeptBeginnings:
    """The folder of an engine's beginnings."""

    def __init__(self, folder: Path, engine: LoadedModel) -> None:
        self._folder = folder
        self._engine = engine

    def keep(self, key: BeginningKey, turns: str, block_loop: BlockLoop) -> None:
        """Write the state of a block loop, which is at the end of a beginning. If that fails, say so in the log."""
        path = self._folder / f"{_name_of(key)}{SUFFIX}"
        try:
            if (path / CELLS).is_file():
                os.utime(path / CELLS)
                return
            path.mkdir(mode=0o700, exist_ok=True)
            about = {"beginning": _values_of(key), "rows": _kept_rows(RowFolder(path), block_loop)}
            save_session(path / CELLS, self._engine, block_loop, key.system, Dialogue(turns), about=about)
            self._engine.kept_bytes += (path / CELLS).stat().st_size
        except (OSError, EdgeKVError) as error:
            log.warning("a beginning of %d tokens is not kept: %s", key.n_past, error)
            shutil.rmtree(path, ignore_errors=True)

    def note_use(self, key: BeginningKey) -> None:
        """Note that a beginning was used now."""
        with suppress(OSError):
            os.utime(self._folder / f"{_name_of(key)}{SUFFIX}" / CELLS)

    def paths(self) -> Iterator[Path]:
        """Yield the folders, the least recently used one first; remove those that killed processes left."""
        found = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):
                found.append(((path / CELLS).stat().st_mtime, path))
                continue
            shutil.rmtree(path, ignore_errors=True)
        yield from (path for _, path in sorted(found))

    def load(self, path: Path, block_loop: BlockLoop, archive: Archive | None, beginnings: Beginnings) -> None:
        """Load a beginning into cells that nobody has, and have it among the beginnings.

        Raises SessionFileError, BudgetError or CeilingError for one that does not fit this engine.
        """
        with open_snapshot_file(path / CELLS) as file:
            key = _key_of(file.header)
            end, parts = parts_of_values(file.header.inner("rows"), key.n_past)
            has_same_rows = row_kind(file) == row_kind(CachedSource(block_loop.cache))
        system, dialogue = load_session(path / CELLS, self._engine, block_loop)
        if system != key.system or block_loop.cache.n_past != key.n_past:
            raise SessionFileError(f"{str(path)!r} is damaged: it is no beginning of its tokens")
        if archive is not None:
            is_whole_text = has_same_rows and end == key.n_past
            _take_rows(RowFolder(path), parts if is_whole_text else [], block_loop, archive)
        block_loop.archive = archive
        beginnings.keep(key, dialogue.turns, block_loop)


def _take_rows(files: RowFolder, parts: list[Part], block_loop: BlockLoop, archive: Archive) -> None:
    """Have an archive go on with the rows of a beginning; without them begin again."""
    cache = block_loop.cache
    archive.restart(cache)
    if parts:
        try:
            rows = files.open(cache, parts, cache.n_past, 0, writes=False)
        except (OSError, ConfigError) as error:
            archive.lose(str(error), cache.n_past)
        else:
            archive.go_on_with(rows, cache)


def _kept_rows(files: RowFolder, block_loop: BlockLoop) -> dict[str, Any] | None:
    """Link or copy the files of a beginning's rows; returns what is to be said of them. Raises OSError."""
    rows = None if block_loop.archive is None else block_loop.archive.stored(block_loop.cache)
    if rows is None or rows.archive.begin > 0:
        return None
    adopted: Rows = files.adopted(rows, block_loop.cache)
    try:
        return files.described(adopted)
    finally:
        adopted.archive.close()


def _values_of(key: BeginningKey) -> dict[str, Any]:
    return {"n_past": key.n_past, "digest": key.digest.hex(), "turned": key.turned}


def _key_of(header: SnapshotHeader) -> BeginningKey:
    """Return the key of a beginning. Raises SessionFileError."""
    values = header.required("beginning")
    digest = values.value("digest", lambda it: isinstance(it, str) and len(it) == 2 * DIGEST_BYTES)
    system = header.value("system", lambda it: it is None or isinstance(it, str))
    try:
        in_bytes = bytes.fromhex(digest)
    except ValueError:
        raise header.damaged("its 'digest' is impossible") from None
    return BeginningKey(
        values.value("n_past", lambda it: is_whole(it, MAX_TOKEN)),
        system,
        in_bytes,
        values.value("turned", lambda it: isinstance(it, bool)),
    )


def _name_of(key: BeginningKey) -> str:
    return hashlib.blake2b(repr(key).encode(), digest_size=DIGEST_BYTES).hexdigest()
