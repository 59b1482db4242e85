"""The swap space: snapshots of sessions without the cells, in memory or, beyond its limit, on the disk."""

from __future__ import annotations

from pathlib import Path

from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.block_loop_snapshot import BlockLoopSnapshot
from edgekv.errors import ConfigError, SwapError
from edgekv.memory.sizes import MIB, format_size
from edgekv.planning.ledger import Ledger
from edgekv.store.temp_array import temp_file

from .beginnings import Beginnings
from .sequence_state import SequenceState
from .stored_snapshot import StoredSnapshot

BEGINNING_BYTES = 256 * MIB  # on the disk, of shared beginnings, unless four sessions take more


def usable_folder(name: str) -> str:
    """Make a swap_dir if it does not exist; returns its name. Raises ConfigError if it takes no file."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
        temp_file(name).close()
    except OSError as error:
        raise ConfigError(
            f"swap_dir={name!r} cannot be used: {error.strerror or error}; name a folder that can be written to"
        ) from error
    return name


class SwapSpace:
    """Snapshots by sequence. Those in memory, and what a switch takes on top, stay within the limit.

    ledger: says what they may hold in memory
    named: bytes that the user named for that; None = all that is free
    session_bytes: the most bytes of a sequence, which a switch in memory takes on top
    folder: takes snapshots that have no room in memory, without a copy in memory; None = that of TMPDIR
    folder_limit: bytes that the folder may hold, without the sequence that is swapped in; 0 = the folder takes nothing,
        None = any number
    evicts: evict the least recently used sequences if memory and folder are full; otherwise raise SwapError
    beginnings: shared beginnings, which make room in the folder for sequences
    """

    def __init__(
        self,
        ledger: Ledger,
        named: int | None,
        session_bytes: int,
        folder: str | None,
        folder_limit: int | None,
        *,
        evicts: bool,
    ) -> None:
        self._ledger = ledger
        self._named = named
        self._session_bytes = session_bytes
        self._folder = folder
        self._folder_limit = folder_limit
        self._evicts = evicts
        self.beginnings = Beginnings(folder, self._beginning_bytes)
        self._swapped: dict[SequenceState, BlockLoopSnapshot | StoredSnapshot] = {}  # the least recently used one first

    def __contains__(self, sequence: SequenceState) -> bool:
        """Return True if a sequence has a snapshot here."""
        return sequence in self._swapped

    @property
    def memory_bytes(self) -> int:
        """Bytes of snapshots in memory."""
        return sum(it.nbytes for it in self._swapped.values() if isinstance(it, BlockLoopSnapshot))

    @property
    def limit(self) -> int:
        """Bytes that snapshots may take in memory now."""
        return self._ledger.swap_limit(self._named)

    @property
    def disk_bytes(self) -> int:
        """Bytes of snapshots in the folder."""
        return sum(it.nbytes for it in self._swapped.values() if isinstance(it, StoredSnapshot))

    def store(self, sequence: SequenceState, block_loop: BlockLoop, following: SequenceState) -> None:
        """Copy the cells of a sequence to memory, or to the folder if memory has no room.

        following: gets the cells next. It is not evicted. If it has no snapshot here, it is a newcomer, and a later
            switch must be possible, too: otherwise it would shut the others out

        Raises SwapError if there is no room. No sequence is evicted then, unless the disk fails.
        """
        n_bytes, n_stored, limit = block_loop.snapshot_bytes, block_loop.stored_bytes, self.limit
        coming = self._swapped.get(following)
        stays = coming.nbytes if isinstance(coming, BlockLoopSnapshot) else 0
        if self._folder_limit == 0 and n_bytes + stays > limit:
            raise self._full(n_bytes)
        if coming is None:
            self._admit(n_stored, limit)
        while self.memory_bytes + n_bytes > limit:
            if self._fits_folder(n_stored, following):
                self._swapped[sequence] = self.written(block_loop)
                return
            self._evict_oldest(n_bytes, following)
        self.hold(sequence, block_loop)

    def hold(self, sequence: SequenceState, block_loop: BlockLoop) -> None:
        """Copy the cells of a sequence to memory, whatever room there is."""
        self._swapped[sequence] = block_loop.snapshot()

    def get(self, sequence: SequenceState) -> BlockLoopSnapshot | StoredSnapshot | None:
        """Return the snapshot of a sequence; None = it has none."""
        return self._swapped.get(sequence)

    def forget(self, sequence: SequenceState) -> None:
        """Free the snapshot of a sequence."""
        snapshot = self._swapped.pop(sequence, None)
        if isinstance(snapshot, StoredSnapshot):
            snapshot.close()

    def close(self) -> None:
        """Free everything."""
        for sequence in list(self._swapped):
            self.forget(sequence)
        self.beginnings.close()

    def _beginning_bytes(self) -> int:
        """Return the bytes that shared beginnings may take."""
        if self._folder_limit is None:
            return max(BEGINNING_BYTES, 4 * self._session_bytes)
        return max(0, self._folder_limit - self.disk_bytes)

    def _admit(self, n_bytes: int, limit: int) -> None:
        """Make sure that all sequences have room beside a switch, with a newcomer and `n_bytes` more swapped out."""
        if self._folder_limit is None:
            return
        room = max(0, limit - self._session_bytes) + self._folder_limit
        if n_bytes > room:
            raise self._full(n_bytes)
        while self.memory_bytes + self.disk_bytes + n_bytes > room:
            self._evict_oldest(n_bytes)

    def _fits_folder(self, n_bytes: int, following: SequenceState) -> bool:
        if self._folder_limit is None:
            return True
        coming = self._swapped.get(following)
        freed = coming.nbytes if isinstance(coming, StoredSnapshot) else 0
        room = self._folder_limit - (self.disk_bytes - freed + n_bytes)
        if room >= 0:
            self.beginnings.shrink(room)
        return room >= 0

    def written(self, block_loop: BlockLoop) -> StoredSnapshot:
        """Write the cells of a block loop to a file of the folder. Raises SwapError."""
        try:
            return StoredSnapshot(temp_file(self._folder), block_loop, block_loop.mark())
        except OSError as error:
            where = "the folder that TMPDIR names" if self._folder is None else f"swap_dir={self._folder!r}"
            raise SwapError(
                f"{where} does not take the {format_size(block_loop.stored_bytes)} of a swapped-out session: "
                f"{error.strerror or error}; make room there, close sessions, or name another swap_dir"
            ) from error

    def _evict_oldest(self, n_bytes: int, following: SequenceState | None = None) -> None:
        """Evict the least recently used sequence but `following`. Raises SwapError if that is not allowed."""
        oldest = next((sequence for sequence in self._swapped if sequence is not following), None)
        if oldest is None or not self._evicts:
            raise self._full(n_bytes)
        self.forget(oldest)
        oldest.lost = "this session was evicted to make room for others, as swap_full='evict' allows"

    def _full(self, n_bytes: int) -> SwapError:
        limits = f"{self._ledger.swap_words(self._named)} and swap_bytes={format_size(self._folder_limit or 0)} do"
        remedies = ["raise swap_bytes", "raise swap_memory", "lower the budget", "close sessions"]
        if not self._evicts:
            remedies.append("open the runtime with swap_full='evict'")
        total = self.memory_bytes + self.disk_bytes
        return SwapError(
            f"{limits} not hold {format_size(n_bytes)} more beside the {format_size(total)} of swapped-out "
            f"sessions and the {format_size(self._session_bytes)} that a switch takes; {', '.join(remedies[:-1])}, or "
            f"{remedies[-1]}"
        )
