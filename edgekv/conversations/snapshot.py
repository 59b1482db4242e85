"""Snapshots: copies in memory of the state of a session, which it can go back to any number of times."""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.archive.row_files import Mark
from edgekv.cells.block_loop_snapshot import BlockLoopSnapshot
from edgekv.generation.turn_state import Dialogue
from edgekv.store.log import LogCopy


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot:
    """The state of a session, for `Session.restore`. Opaque; it can be pickled.

    runtime: mark of the runtime that it was taken in
    log: the tokens of prompts and replies; None = the session keeps no history
    archive: the tokens that its archive goes back to; None = it has none
    """

    runtime: bytes
    system: str | None
    dialogue: Dialogue
    block_loop: BlockLoopSnapshot
    log: LogCopy | None = None
    archive: Mark | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of cells and log."""
        return self.block_loop.cells.nbytes + (0 if self.log is None else self.log.nbytes)
