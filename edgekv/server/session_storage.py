"""The sessions of a pool on the disk: found again, kept as they grow or saved whole, and removed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import edgekv
from edgekv.store.kept_folder import is_kept

from .state_folder import StateFolder

log = logging.getLogger("edgekv.server")


class SessionStorage:
    """The part of a pool that outlives the process. What the disk does not take is logged, and no request fails by it.

    folder: None = nothing outlives the process
    """

    def __init__(self, folder: StateFolder | None) -> None:
        self.folder = folder
        self._n_kept_bytes = 0  # written by the runtime of now, as far as the folder has counted them

    def begin(self, runtime: edgekv.Runtime, n: int) -> list[tuple[edgekv.Session, Path]]:
        """Load beginnings and the n newest sessions into a new runtime, the oldest of them first."""
        self._n_kept_bytes = 0
        if self.folder is None:
            return []
        try:
            runtime.keep_beginnings(self.folder.beginnings)
        except edgekv.SessionFileError as error:
            log.warning("%s", error)
        found = []
        for path in self.folder.newest(n):
            try:
                found.append((runtime.load_session(path, keep=is_kept(path)), path))
            except edgekv.EdgeKVError as error:
                log.warning("%s is not gone on with: %s", path, error)
        return found

    def keep(self, session: edgekv.Session, runtime: edgekv.Runtime) -> Path | None:
        """Keep a new session as it grows if the runtime can; returns its path. Otherwise it will be saved there."""
        if self.folder is None:
            return None
        path = self.folder.new_path()
        if runtime.keeps_sessions:
            try:
                session.keep(path)
            except edgekv.SessionFileError as error:
                log.warning("%s", error)
        return path

    def save(self, session: edgekv.Session, path: Path | None, *, archive: bool) -> None:
        """Save a session that is not kept as it grows, if it has cells and a path. Raises WorkerError."""
        if path is None or self.folder is None or session.kept_in is not None or session.n_past == 0:
            return
        try:
            session.save(path, archive=archive)
            self.folder.written_bytes += path.stat().st_size
        except edgekv.WorkerError:
            raise
        except (edgekv.EdgeKVError, OSError) as error:
            log.warning("%s is not saved: %s", path, error)

    def remove(self, path: Path | None) -> None:
        """Remove what a session that was closed has on the disk."""
        if path is not None and self.folder is not None:
            self.folder.remove(path)

    def count(self, runtime: edgekv.Runtime) -> None:
        """Count what the runtime of now has written since the last time to keep sessions and beginnings."""
        if self.folder is not None:
            n_kept = runtime.n_kept_bytes
            self.folder.written_bytes += n_kept - self._n_kept_bytes
            self._n_kept_bytes = n_kept

    def keep_to_limit(self, end: Callable[[Path], None]) -> None:
        """Remove what was used longest ago if all together take too much of the disk. end: as for `StateFolder`"""
        if self.folder is not None:
            self.folder.keep_to_limit(end)
