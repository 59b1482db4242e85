"""The swap space: snapshots of sessions without the cells, in memory or, beyond its limit, on the disk."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from edgekv.binding.cache import CacheSnapshot
from edgekv.engine.block_loop_snapshot import ELSEWHERE, BlockLoopSnapshot
from edgekv.errors import SwapError
from edgekv.memory import process
from edgekv.memory.sizes import format_size
from edgekv.planning.estimate import Plan

from .sequence_state import SequenceState
from .swap_folder import SwapFile, SwapFolder


class SwapMemory:
    """The memory of a plan for swapped-out sessions. named: bytes that the user named; None = all that is free"""

    def __init__(self, plan: Plan, named: int | None) -> None:
        self._plan = plan
        self._named = named

    def limit(self, held: int) -> int:
        """Return the bytes that they may take now, including the `held` bytes that they have."""
        if self._named is not None:
            return self._named
        planned = self._plan.peak_bytes - self._plan.parts.swap
        others = max(planned, process.resident_bytes() - held)  # includes what the host took meanwhile
        return max(0, self._plan.ceiling_bytes - others)

    def __str__(self) -> str:
        """Return the limit, as errors name it."""
        if self._named is not None:
            return f"swap_memory={format_size(self._named)}"
        return f"what memory={format_size(self._plan.ceiling_bytes)} leaves free"


@dataclass(slots=True)
class SwappedState:
    """A snapshot. file: holds its cells and history; None = they are in memory"""

    snapshot: BlockLoopSnapshot
    n_bytes: int
    file: SwapFile | None = None


class SwapSpace:
    """Snapshots by sequence. Their memory, and what a switch takes on top, stay within the limit.

    session_bytes: the most bytes of a sequence, which a switch takes on top
    folder: takes snapshots that have no room in memory; None = no folder
    folder_limit: bytes that the folder may hold, without the sequence that is swapped in; None = any number
    evicts: evict the least recently used sequences if memory and folder are full; otherwise raise SwapError
    """

    def __init__(
        self, room: SwapMemory, session_bytes: int, folder: SwapFolder | None, folder_limit: int | None, *, evicts: bool
    ) -> None:
        self._room = room
        self._session_bytes = session_bytes
        self._folder = folder
        self._folder_limit = folder_limit
        self._evicts = evicts
        self._swapped: OrderedDict[SequenceState, SwappedState] = OrderedDict()  # the least recently used one first

    @property
    def memory_bytes(self) -> int:
        """Bytes of snapshots in memory."""
        return sum(swapped.n_bytes for swapped in self._swapped.values() if swapped.file is None)

    def put(self, sequence: SequenceState, snapshot: BlockLoopSnapshot) -> None:
        """Store a snapshot. Call `make_room` first."""
        self._swapped[sequence] = SwappedState(snapshot, snapshot.nbytes)

    def get(self, sequence: SequenceState) -> BlockLoopSnapshot | None:
        """Return the snapshot of a sequence; None = it has none.

        Raises SwapError if it is on the disk and cannot be read now, or has no room in memory. Raises
        SessionEvictedError if its file is gone or was changed.
        """
        swapped = self._swapped.get(sequence)
        if swapped is None or swapped.file is None or self._folder is None:
            return None if swapped is None else swapped.snapshot
        self.make_room(swapped.n_bytes, keep=sequence)
        try:
            cells, history = self._folder.read(swapped.file)
        except (FileNotFoundError, ValueError) as error:
            self.forget(sequence)
            sequence.lost = f"what this session had read and said cannot be read back from swap_dir: {error}"
            raise sequence.evicted() from error
        except OSError as error:
            raise SwapError(
                f"swap_dir={str(self._folder.parent)!r} does not give a swapped-out session back: "
                f"{error.strerror or error}; try again"
            ) from error
        return replace(swapped.snapshot, cells=CacheSnapshot(cells), history=history.tobytes())

    def forget(self, sequence: SequenceState) -> None:
        """Free the snapshot of a sequence."""
        swapped = self._swapped.pop(sequence, None)
        if swapped is not None and swapped.file is not None and self._folder is not None:
            self._folder.remove(swapped.file)

    def close(self) -> None:
        """Free everything."""
        self._swapped.clear()
        if self._folder is not None:
            self._folder.close()

    def make_room(self, n_bytes: int, keep: SequenceState) -> None:
        """Make room for n_bytes more in memory. Clients may be evicted for that, but not `keep`.

        If `keep` has no snapshot here, it is a newcomer, and a later switch must be possible, too: otherwise it would
        shut the others out. Raises SwapError if there is no room. No sequence is evicted then, and snapshots that were
        written to the disk stay valid.
        """
        limit = self._room.limit(self.memory_bytes)
        kept = self._swapped.get(keep)
        stays = kept.n_bytes if kept is not None and self._folder is None else 0
        if n_bytes + stays > limit:
            raise self._full(n_bytes)
        if kept is None:
            self._admit(n_bytes, limit)
        in_memory = [sequence for sequence, swapped in self._swapped.items() if swapped.file is None]
        in_memory.sort(key=lambda sequence: sequence is keep)  # `keep` comes last
        for sequence in in_memory:
            if self.memory_bytes + n_bytes <= limit:
                return
            if self._folder is not None:
                self._write(sequence, self._folder, keep)
            elif self._evicts:
                self._evict(sequence)
            else:
                raise self._full(n_bytes)

    def _admit(self, n_bytes: int, limit: int) -> None:
        """Make sure that all sequences have room beside a switch, with a newcomer and `n_bytes` more swapped out."""
        if self._folder is not None and self._folder_limit is None:
            return
        room = max(0, limit - self._session_bytes) + (self._folder_limit or 0)
        if n_bytes > room or (not self._evicts and self._total + n_bytes > room):
            raise self._full(n_bytes)
        while self._total + n_bytes > room:
            self._evict(next(iter(self._swapped)))

    @property
    def _total(self) -> int:
        return sum(swapped.n_bytes for swapped in self._swapped.values())

    def _write(self, sequence: SequenceState, folder: SwapFolder, keep: SequenceState) -> None:
        """Move a snapshot from memory to the disk."""
        swapped = self._swapped[sequence]
        while older := self._beyond_limit(swapped.n_bytes, keep):
            if not self._evicts:
                raise self._full(swapped.n_bytes)
            self._evict(older[0])
        cells = swapped.snapshot.cells
        assert isinstance(cells, CacheSnapshot)  # checkpoints are files from the beginning
        try:
            file = folder.write(cells.data.data, memoryview(swapped.snapshot.history))
        except OSError as error:
            raise SwapError(
                f"swap_dir={str(folder.parent)!r} does not take the {format_size(swapped.n_bytes)} of a swapped-out "
                f"session: {error.strerror or error}; make room there, or name another folder"
            ) from error
        without = replace(swapped.snapshot, cells=ELSEWHERE, history=b"")
        # one assignment: the state is whole in memory, or whole on the disk
        self._swapped[sequence] = SwappedState(without, swapped.n_bytes, file)

    def _beyond_limit(self, n_bytes: int, keep: SequenceState) -> list[SequenceState]:
        """Return the sequences on the disk if `n_bytes` more exceed the folder's limit; otherwise none."""
        on_disk = [sequence for sequence, its in self._swapped.items() if its.file is not None and sequence is not keep]
        total = n_bytes + sum(self._swapped[sequence].n_bytes for sequence in on_disk)
        return on_disk if self._folder_limit is not None and total > self._folder_limit else []

    def _evict(self, sequence: SequenceState) -> None:
        self.forget(sequence)
        sequence.lost = "this session was evicted to make room for others, as swap_full='evict' allows"

    def _full(self, n_bytes: int) -> SwapError:
        limits, remedies = f"{self._room} does", ["raise swap_memory", "name a swap_dir"]
        if self._folder_limit is not None:
            limits = f"{self._room} and swap_bytes={format_size(self._folder_limit)} do"
            remedies = ["raise swap_bytes"]
        remedies += ["lower the budget", "close sessions"]
        if not self._evicts:
            remedies.append("open the runtime with swap_full='evict'")
        return SwapError(
            f"{limits} not hold {format_size(n_bytes)} more beside the {format_size(self._total)} of swapped-out "
            f"sessions and the {format_size(self._session_bytes)} that a switch takes; {', '.join(remedies[:-1])}, or "
            f"{remedies[-1]}"
        )
