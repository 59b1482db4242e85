"""The whole state of a session: copied and restored, saved to a file, kept in a folder as it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from .arguments import path_of
from .conversations.snapshot import Snapshot
from .errors import ConfigError
from .session_record import SessionRecord


class SessionState(SessionRecord):
    """A session whose state can be had as a whole."""

    _kept_in: Path | None

    def snapshot(self) -> Snapshot:
        """Copy the whole state of the session, so that `restore` can go back to it.

        The plan does not count the copy: `Runtime.holds_snapshot` tells before anything is read if there is room for
        it. With an isolated runtime the copy is in this process, not in the worker. `save` needs no room.
        Raises SessionError while the session is answering. Raises CeilingError, before the copy is made, if it would
        bring the process over its ceiling.
        """
        with self.alone():
            return cast(Snapshot, self._call("snapshot"))

    def restore(self, snapshot: Snapshot) -> None:
        """Return to the state of a snapshot, as often as you like.

        Raises SessionError while the session is answering, and for a snapshot of another runtime, of a session with
        another system message, or, with history=True, of one without a history. Raises ConfigError for a snapshot with
        more cells than there are since the ceiling was lowered.
        """
        if not isinstance(snapshot, Snapshot):
            raise ConfigError(f"snapshot={snapshot!r} is no snapshot; give what `snapshot` returned")
        with self.alone():
            self._restore(snapshot)
            self._start = None

    def save(self, path: str | os.PathLike[str], *, archive: bool = True) -> None:
        """Write the whole state of the session to a file, for `Runtime.load_session` (docs/sessions.md).

        archive: write the rows of all tokens as well, if the session has an archive. What was evicted is then recalled
            after loading

        The file is whole or not there: if this fails, or the process ends, an older file of that name is untouched. It
        takes no memory to speak of, and only its owner can read it.
        Raises SessionFileError if it cannot be written, and SessionError while the session is answering.
        """
        with self.alone():
            self._call("save", Path(os.path.abspath(path_of("path", path))), archive)

    def keep(self, path: str | os.PathLike[str]) -> None:
        """Append the session to a new folder from now on, as it grows, so that it survives a kill (docs/sessions.md).

        `Runtime.load_session(path, keep=True)` goes on with it. After a kill at most the newest block is missing. If
        the disk takes no more, the session goes on, and `stats.keeping_failure` says so.
        Raises SessionFileError if the folder cannot be made or is there already, ConfigError if the runtime has no
        archive or the model's rows are not enough to go on (`Runtime.keeps_sessions`), and SessionError without a
        history or while the session is answering.
        """
        folder = Path(os.path.abspath(path_of("path", path)))
        with self.alone():
            self._begin()
            if not self._engine.call("keeps_sessions"):
                raise ConfigError(
                    "a session is kept with the rows of its tokens, and this runtime has no archive, or the model "
                    "needs more than rows; open one with archive=..., or write the session whole with save"
                )
            self._call("keep", folder)
        self._kept_in = folder

    @contextmanager
    def giving_way(self) -> Iterator[int]:
        """Yield its number to a load that takes its cells. The session then ends; if the load fails, it goes on."""
        with self.alone():
            n_past = self._look("n_past")
            try:
                yield self._number
            except BaseException:
                if self._look("n_past") != n_past:
                    self.close()  # its cells are gone: a file that was found sound failed later, or Ctrl-C came
                raise
        self.close()

    @property
    def kept_in(self) -> Path | None:
        """The folder that the session is appended to as it grows; None = it is kept nowhere."""
        return self._kept_in
