"""What a conversation can go back to: the log of its tokens, and checkpoints on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from io import FileIO

from edgekv.errors import ConfigError, SessionError, SessionFileError
from edgekv.memory.sizes import MIB, format_size
from edgekv.planning.estimate import Plan
from edgekv.prompt.turns import STATES, Kind
from edgekv.store.log import TokenLog
from edgekv.store.temp_array import temp_file

from .block_loop import BlockLoop
from .checkpoints import Checkpoint, Checkpoints
from .request import Logging
from .snapshot import BlockLoopSnapshot, Snapshot
from .speculation import WINDOW

CHECKPOINT_BYTES = 256 * MIB  # on the disk, unless four checkpoints take more


class SessionHistory:
    """The log and the checkpoints of one conversation, which lie on the disk.

    The log holds the tokens that have been fed, so a session's last token may be missing: it was said and not fed yet.
    """

    def __init__(self, logging: Logging, plan: Plan) -> None:
        """Raises SessionFileError where the folder takes no file, and ConfigError for a cap below one checkpoint."""
        largest = plan.session_bytes
        cap = max(CHECKPOINT_BYTES, 4 * largest) if logging.checkpoint_bytes is None else logging.checkpoint_bytes
        if 0 < cap < largest:
            raise ConfigError(
                f"checkpoint_bytes={format_size(cap)} does not hold a checkpoint, which takes up to "
                f"{format_size(largest)}; raise it to {-(-largest // MIB)}MiB, or give 0 to keep none"
            )
        self._setting = logging, plan
        self._folder = logging.folder
        self.log = TokenLog(logging.folder)
        self.checkpoints = Checkpoints(cap)

    def close(self) -> None:
        """Remove all files."""
        self.log.close()
        self.checkpoints.close()

    def note(self, n_past: int, state: tuple[object, ...], taken: Callable[[FileIO], Snapshot]) -> None:
        """Forget what comes after n_past tokens, and add a checkpoint. It is left out where the disk has no room.

        state: of the turns, tokens pending, and of the sampler
        taken: writes a snapshot to a file
        """
        self.log.cut(n_past)
        newest = self.checkpoints.newest
        if n_past == 0 or not self.checkpoints.max_bytes or (newest is not None and newest.is_of(n_past, state)):
            return
        with suppress(OSError, SessionFileError):
            file = temp_file(self._folder)
            try:
                checkpoint = Checkpoint(n_past, taken(file))
            except BaseException:
                file.close()
                raise
            self.checkpoints.add(checkpoint)

    def back_to(self, n: int, block_loop: BlockLoop) -> Snapshot | None:
        """Return the cells to the newest checkpoint of at most n tokens; returns what it holds, None = the beginning.

        After an exception do it again: the cells are then those of before, of the checkpoint, or of no use. Forgets
        later checkpoints, and those whose file cannot be read.
        """
        self.checkpoints.drop_from(n + 1)
        while (checkpoint := self.checkpoints.newest) is not None:
            try:
                block_loop.restore(self._with_draft_tokens(checkpoint))
            except OSError:
                self.checkpoints.drop_from(checkpoint.n_past)
            else:
                return checkpoint.snapshot
        block_loop.begin()
        return None

    def current_checkpoint(self, n_past: int, state: tuple[object, ...]) -> BlockLoopSnapshot | None:
        """The newest checkpoint, if it is of a session that is so now."""
        newest = self.checkpoints.newest
        if newest is None or not newest.is_of(n_past, state):
            return None
        return self._with_draft_tokens(newest)

    def _with_draft_tokens(self, checkpoint: Checkpoint) -> BlockLoopSnapshot:
        """What a checkpoint holds, with the tokens that drafts come from."""
        newest = self.log.read(max(0, checkpoint.n_past - WINDOW), checkpoint.n_past).tobytes()
        return replace(checkpoint.snapshot.block_loop, history=newest)

    def marker(self, kind: Kind, n_past: int, first: int = 0, *, known: int = 0) -> Callable[[int, str], None]:
        """A function that notes whose the tokens of a prompt are, once they are fed; `Prompt.tokens` calls it.

        n_past: tokens that were fed before it is read
        first: position of its first token
        known: tokens of a history without turns that the log knows better
        """
        while_read = STATES[kind][0]
        self.log.expect(n_past)

        def mark(n_before: int, role: str) -> None:
            position = max(first + n_before, known if kind in ("whole", "tokens") else 0)
            self.log.announce(position, role, "assistant" if role == "assistant" else while_read)

        return mark

    def restored(self, snapshot: Snapshot, block_loop: BlockLoop) -> SessionHistory:
        """Go back to a snapshot; returns the history that it has, which shares the checkpoints that fit with this one.

        Raises SessionError for a snapshot without a log, and what `BlockLoop.restore` raises; nothing changes then.
        """
        if snapshot.log is None:
            raise SessionError(
                "the snapshot is of a session without a log; restore it in such a one, or take it with log=True"
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

    def replies(self, pending: Sequence[int]) -> Iterator[list[int]]:
        """The tokens of each reply so far. pending: those at the end of the last one that the log lacks"""
        for turn in self.log.turns(len(pending)):
            if turn.role == "assistant":
                yield list(self.tokens(turn.start, turn.stop, pending))

    def tokens(self, start: int, stop: int, pending: Sequence[int]) -> Iterator[int]:
        """The tokens in [start, stop), of which the last ones may be pending."""
        n = len(self.log)
        yield from self.log.tokens(start, min(stop, n))
        yield from pending[max(0, start - n) : max(0, stop - n)]
