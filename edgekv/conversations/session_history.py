"""The history of a conversation, which it can go back in: the log of its tokens, and checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.token_blocks import blocks
from edgekv.errors import ArchiveError, ConfigError, SessionError, SessionFileError
from edgekv.generation.request import Logging
from edgekv.generation.turn_state import Dialogue
from edgekv.memory.sizes import MIB, format_size
from edgekv.planning.plan import Plan
from edgekv.prompt.text import Prompt
from edgekv.prompt.turns import STATES, Kind
from edgekv.store.log import TokenLog
from edgekv.store.temp_array import WINDOW

from .checkpoints import Checkpoints
from .snapshot import Snapshot
from .stored_snapshot import StoredSnapshot

CHECKPOINT_BYTES = 256 * MIB  # on the disk, unless four checkpoints take more


class SessionHistory:
    """The log and the checkpoints of one conversation, which lie on the disk.

    The log holds the tokens that were fed. A session's last token may be missing, as it is generated and not fed yet.
    """

    def __init__(self, logging: Logging, plan: Plan) -> None:
        """Make the files. Raises SessionFileError if that fails, and ConfigError for a cap below one checkpoint."""
        largest = plan.session_bytes
        cap = max(CHECKPOINT_BYTES, 4 * largest) if logging.checkpoint_bytes is None else logging.checkpoint_bytes
        if 0 < cap < largest:
            raise ConfigError(
                f"checkpoint_bytes={format_size(cap)} does not hold a checkpoint, which takes up to "
                f"{format_size(largest)}; raise it to {-(-largest // MIB)}MiB, or give 0 to keep none"
            )
        self._setting = logging, plan
        self.folder = logging.folder
        self.log = TokenLog(logging.folder)
        self.checkpoints = Checkpoints(cap, logging.folder)

    def close(self) -> None:
        """Remove all files."""
        self.log.close()
        self.checkpoints.close()

    def note(self, n_past: int, dialogue: Dialogue, block_loop: BlockLoop) -> None:
        """Cut the log after n_past tokens, and add a checkpoint. It is left out if the disk has no room."""
        self.log.cut(n_past)
        if n_past == 0 or not self.checkpoints.max_bytes or self.current_checkpoint(n_past, dialogue) is not None:
            return
        with suppress(OSError):
            self.checkpoints.add(n_past, dialogue, block_loop)

    def back_to(self, n: int, block_loop: BlockLoop) -> Dialogue:
        """Restore the newest checkpoint of at most n tokens, or the beginning; returns the dialogue by then.

        After an exception call it again: the cells are then as before, as in the checkpoint, or of no use. Removes
        later checkpoints, and those that cannot be read.
        """
        self.checkpoints.drop_from(n + 1)
        while (checkpoint := self.checkpoints.newest) is not None:
            try:
                checkpoint.stored.load(block_loop)
            except (OSError, SessionFileError, ArchiveError):
                self.checkpoints.drop_from(checkpoint.n_past)
            else:
                return checkpoint.dialogue
        block_loop.begin()
        return Dialogue()

    def dropped_to(self, n: int, block_loop: BlockLoop) -> Dialogue:
        """Drop the cells of the tokens after the first n, at least `BlockLoop.earliest`; returns the dialogue by then.

        The sampler is that of the newest checkpoint before, as `back_to` has it. Removes later checkpoints.
        """
        self.checkpoints.drop_from(n + 1)
        block_loop.drop_to(n)
        newest = self.checkpoints.newest
        if newest is not None and newest.n_past == n:
            return newest.dialogue
        return Dialogue(self.log.state_at(n), sampler=None if newest is None else newest.dialogue.sampler)

    def restorable(self, n: int) -> int:
        """Return the length of the newest checkpoint of at most n tokens; 0 = there is none."""
        checkpoint = self.checkpoints.before(n)
        return 0 if checkpoint is None else checkpoint.n_past

    def log_of(self, prompt: Prompt, n: int, kind: Kind) -> TokenLog:
        """Return a new log that holds the first n tokens of a prompt. Raises SessionFileError."""
        log = TokenLog(self.folder)
        try:
            coming = itertools.islice(prompt.tokens(lambda n_before, role: _announce(log, n_before, role, kind)), n)
            for some in blocks(coming, WINDOW):
                log.make_room(len(some))
                log.follow(some, len(log) + len(some))
        except BaseException:
            log.close()
            raise
        return log

    def current_checkpoint(self, n_past: int, dialogue: Dialogue) -> StoredSnapshot | None:
        """Return the newest checkpoint if it matches the current state."""
        newest = self.checkpoints.newest
        return newest.stored if newest is not None and newest[:2] == (n_past, dialogue) else None

    def marker(self, kind: Kind, n_past: int, first: int = 0, *, known: int = 0) -> Callable[[int, str], None]:
        """Return a callback for `Prompt.tokens` that notes the role of each part of a prompt in the log.

        n_past: tokens that were fed before the prompt
        first: position of its first token
        known: length of the prefix whose roles the log has already, of a history without turns
        """
        self.log.expect(n_past)

        def mark(n_before: int, role: str) -> None:
            _announce(self.log, max(first + n_before, known if kind in ("whole", "tokens") else 0), role, kind)

        return mark

    def restored(self, snapshot: Snapshot, block_loop: BlockLoop) -> SessionHistory:
        """Go back to a snapshot; returns its history, which takes over the checkpoints of this one that still match.

        Raises SessionError for a snapshot without a history, and what `BlockLoop.restore` raises; nothing changes then.
        """
        if snapshot.log is None:
            raise SessionError(
                "the snapshot is of a session without a history; restore it in such a one, or take it with history=True"
            )
        history = SessionHistory(*self._setting)
        try:
            history.log.fill(snapshot.log)
            n_common, _ = self.log.common(history.log.tokens(0, len(history.log)))
            block_loop.restore(snapshot.block_loop)
        except BaseException:
            history.close()
            raise
        self.checkpoints.drop_from(n_common + 1)
        history.checkpoints = self.checkpoints
        return history

    def fork(self) -> SessionHistory:
        """Return a history with the same log, and no checkpoints. Raises SessionFileError."""
        history = SessionHistory(*self._setting)
        try:
            history.log.fill_from(self.log)
        except BaseException:
            history.close()
            raise
        return history

    def replies(self, pending: Sequence[int]) -> Iterator[list[int]]:
        """Yield the tokens of each reply so far. pending: tokens at the end of the last reply that the log lacks"""
        for turn in self.log.turns(len(pending)):
            if turn.role == "assistant":
                yield list(self.tokens(turn.start, turn.stop, pending))

    def tokens(self, start: int, stop: int, pending: Sequence[int]) -> Iterator[int]:
        """Yield the tokens in [start, stop). The last ones may be pending."""
        n = len(self.log)
        yield from self.log.tokens(start, min(stop, n))
        yield from pending[max(0, start - n) : max(0, stop - n)]


def _announce(log: TokenLog, position: int, role: str, kind: Kind) -> None:
    """Announce a part of a prompt to a log."""
    log.announce(position, role, "assistant" if role == "assistant" else STATES[kind][0])
