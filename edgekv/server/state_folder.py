"""The folder of a server's state: conversations and shared beginnings that it finds again when it starts."""

from __future__ import annotations

import itertools
import logging
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edgekv.errors import ConfigError, SessionFileError
from edgekv.store.kept_folder import JOURNAL, bytes_of, is_kept, remove_kept, remove_unfinished

log = logging.getLogger("edgekv.server")

# folders, and the names that a server gives there; what has another name is somebody else's
NAMES = {"conversations": re.compile(r"\d{6,}\.session"), "beginnings": re.compile(r"[0-9a-f]+\.beginning")}
FREE_SHARE = 4  # without a limit of its own it takes one part in so many of what its disk has free


class StateFolder:
    """Conversations in `conversations`, shared beginnings in `beginnings`, under one limit in bytes.

    written_bytes: written there so far, without the rows of archives
    """

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        """limit_bytes: None = a quarter of what is free on the disk and what it has. Raises ConfigError"""
        self._conversations, self.beginnings = (path / name for name in NAMES)
        self.written_bytes = 0
        self._numbers = itertools.count(1)
        try:
            for folder in (self._conversations, self.beginnings):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            free = shutil.disk_usage(path).free
        except OSError as error:
            raise ConfigError(
                f"state_dir={str(path)!r} cannot be made: {error.strerror or error}; name another folder"
            ) from error
        remove_unfinished(self._conversations)
        self.limit_bytes = (free + self.n_bytes) // FREE_SHARE if limit_bytes is None else limit_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of all that it has."""
        return sum(map(_bytes_of, _by_use(self._conversations, self.beginnings)))

    def newest(self, n: int) -> list[Path]:
        """Return the n most recently used conversations, the oldest of them first."""
        return _by_use(self._conversations)[-n:]

    def new_path(self) -> Path:
        """Return a path for a conversation, which does not exist yet."""
        names = (self._conversations / f"{number:06}.session" for number in self._numbers)
        return next(path for path in names if not path.exists())

    def remove(self, path: Path) -> None:
        """Remove a conversation that nobody uses, or a beginning, if it is there. What cannot be removed is logged."""
        try:
            if is_kept(path):
                remove_kept(path)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except (OSError, SessionFileError) as error:  # no fault of the request that takes its place
            log.warning("%s is not removed: %s", path, error)

    def keep_to_limit(self, end: Callable[[Path], None]) -> None:
        """Remove what was used longest ago, until the rest is within the limit.

        end: ends a conversation and removes it, unless it is in use
        """
        for path in _by_use(self._conversations, self.beginnings):
            if self.n_bytes <= self.limit_bytes:  # counted anew: the others may have files of the removed one, too
                return
            if path.parent == self.beginnings:
                self.remove(path)
            else:
                end(path)


def _by_use(*folders: Path) -> list[Path]:
    """Return the server's own of what lies in folders, the least recently used first."""
    found = itertools.chain.from_iterable(folder.glob("*") for folder in folders)
    return sorted((path for path in found if NAMES[path.parent.name].fullmatch(path.name)), key=_used_at)


def _used_at(path: Path) -> int:
    """Return the time at which a conversation or a beginning was used."""
    files = (path / name for name in (JOURNAL, "cells"))
    try:
        return next((file for file in files if file.exists()), path).lstat().st_mtime_ns
    except OSError:  # another process has removed it
        return 0


def _bytes_of(path: Path) -> int:
    with suppress(OSError):
        return bytes_of(path)
    return 0
