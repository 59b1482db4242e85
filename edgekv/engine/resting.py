"""Resting sessions: snapshots of those that do not have the cells, in memory or, beyond its limit, on the disk."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from edgekv.binding.cache import CacheSnapshot
from edgekv.errors import RestingError
from edgekv.memory import process
from edgekv.memory.sizes import format_size
from edgekv.planning.estimate import Plan

from .cache_client import CacheClient
from .rest_folder import RestFile, RestFolder
from .snapshot import ELSEWHERE, BlockLoopSnapshot


class Room:
    """The memory that a plan has for resting sessions. named: what was asked for; None = all that it leaves free"""

    def __init__(self, plan: Plan, named: int | None) -> None:
        self._plan = plan
        self._named = named

    def limit(self, held: int) -> int:
        """Bytes that they may take now, of which they hold `held`."""
        if self._named is not None:
            return self._named
        planned = self._plan.peak_bytes - self._plan.parts.resting
        others = max(planned, process.resident_bytes() - held)  # whatever the host took meanwhile, too
        return max(0, self._plan.ceiling_bytes - others)

    def __str__(self) -> str:
        """The limit, as errors name it."""
        if self._named is not None:
            return f"resting={format_size(self._named)}"
        return f"what memory={format_size(self._plan.ceiling_bytes)} leaves free"


@dataclass(slots=True)
class Rested:
    """A snapshot. file: where its cells and its history are if they are not in memory"""

    snapshot: BlockLoopSnapshot
    n_bytes: int
    file: RestFile | None = None


class Resting:
    """Snapshots by client. What they hold in memory, and what a switch takes on top, stay within its room.

    session_bytes: what a switch may take, which is the most that a client takes
    folder: takes what has no room in memory; None = there is none
    folder_limit: bytes that it may hold; None = any number. The client that is about to leave it does not count
    drops: where there is room in neither, the least recently used clients are dropped; otherwise RestingError
    """

    def __init__(
        self, room: Room, session_bytes: int, folder: RestFolder | None, folder_limit: int | None, *, drops: bool
    ) -> None:
        self._room = room
        self._session_bytes = session_bytes
        self._folder = folder
        self._folder_limit = folder_limit
        self._drops = drops
        self._rested: OrderedDict[CacheClient, Rested] = OrderedDict()  # the least recently used one first

    @property
    def memory_bytes(self) -> int:
        """Bytes that it holds in memory."""
        return sum(rested.n_bytes for rested in self._rested.values() if rested.file is None)

    def put(self, client: CacheClient, snapshot: BlockLoopSnapshot) -> None:
        """Keep a snapshot, for which `make_room` made room."""
        self._rested[client] = Rested(snapshot, snapshot.nbytes)

    def get(self, client: CacheClient) -> BlockLoopSnapshot | None:
        """The snapshot of a client; None where it has none.

        Raises RestingError where it is on the disk and cannot be read now or has no room in memory, and DroppedError
        where its file is gone or was changed.
        """
        rested = self._rested.get(client)
        if rested is None or rested.file is None or self._folder is None:
            return None if rested is None else rested.snapshot
        self.make_room(rested.n_bytes, keep=client)
        try:
            cells, history = self._folder.read(rested.file)
        except (FileNotFoundError, ValueError) as error:
            self.forget(client)
            client.lost = f"what this session had read and said cannot be read back from rest_dir: {error}"
            raise client.dropped() from error
        except OSError as error:
            raise RestingError(
                f"rest_dir={str(self._folder.parent)!r} does not give a resting session back: "
                f"{error.strerror or error}; try again"
            ) from error
        return replace(rested.snapshot, cells=CacheSnapshot(cells), history=history.tobytes())

    def forget(self, client: CacheClient) -> None:
        """Free what a client has here."""
        rested = self._rested.pop(client, None)
        if rested is not None and rested.file is not None and self._folder is not None:
            self._folder.remove(rested.file)

    def close(self) -> None:
        """Free everything."""
        self._rested.clear()
        if self._folder is not None:
            self._folder.close()

    def make_room(self, n_bytes: int, keep: CacheClient) -> None:
        """See to it that so many bytes more can be taken in memory. Whoever is dropped for that, it is not `keep`.

        Where `keep` has nothing here, a later switch must be possible too: otherwise it would shut others out.
        Raises RestingError where there is no room. Nobody is dropped then, and what went to the disk stays of use.
        """
        limit = self._room.limit(self.memory_bytes)
        kept = self._rested.get(keep)
        stays = kept.n_bytes if kept is not None and self._folder is None else 0
        if n_bytes + stays > limit:
            raise self._full(n_bytes)
        if kept is None:
            self._admit(n_bytes, limit)
        in_memory = [client for client, rested in self._rested.items() if rested.file is None]
        in_memory.sort(key=lambda client: client is keep)  # last
        for client in in_memory:
            if self.memory_bytes + n_bytes <= limit:
                return
            if self._folder is not None:
                self._write(client, self._folder, keep)
            elif self._drops:
                self._drop(client)
            else:
                raise self._full(n_bytes)

    def _admit(self, n_bytes: int, limit: int) -> None:
        """See to it that all have room beside a switch, where there is a newcomer and `n_bytes` more rest."""
        if self._folder is not None and self._folder_limit is None:
            return
        room = max(0, limit - self._session_bytes) + (self._folder_limit or 0)
        if n_bytes > room or (not self._drops and self._total + n_bytes > room):
            raise self._full(n_bytes)
        while self._total + n_bytes > room:
            self._drop(next(iter(self._rested)))

    @property
    def _total(self) -> int:
        return sum(rested.n_bytes for rested in self._rested.values())

    def _write(self, client: CacheClient, folder: RestFolder, keep: CacheClient) -> None:
        """Move a snapshot from memory to the disk."""
        rested = self._rested[client]
        while older := self._beyond_limit(rested.n_bytes, keep):
            if not self._drops:
                raise self._full(rested.n_bytes)
            self._drop(older[0])
        cells = rested.snapshot.cells
        assert isinstance(cells, CacheSnapshot)  # checkpoints are files from the beginning
        try:
            file = folder.write(cells.data.data, memoryview(rested.snapshot.history))
        except OSError as error:
            raise RestingError(
                f"rest_dir={str(folder.parent)!r} does not take the {format_size(rested.n_bytes)} of a resting "
                f"session: {error.strerror or error}; make room there, or name another folder"
            ) from error
        without = replace(rested.snapshot, cells=ELSEWHERE, history=b"")
        self._rested[client] = Rested(without, rested.n_bytes, file)  # at once: whole in memory, or whole on the disk

    def _beyond_limit(self, n_bytes: int, keep: CacheClient) -> list[CacheClient]:
        """Those on the disk, where `n_bytes` more would be too much there; otherwise nobody."""
        on_disk = [client for client, its in self._rested.items() if its.file is not None and client is not keep]
        total = n_bytes + sum(self._rested[client].n_bytes for client in on_disk)
        return on_disk if self._folder_limit is not None and total > self._folder_limit else []

    def _drop(self, client: CacheClient) -> None:
        self.forget(client)
        client.lost = "this session was dropped to make room for others, as rest_full='drop' allows"

    def _full(self, n_bytes: int) -> RestingError:
        limits, remedies = f"{self._room} does", ["raise resting", "name a rest_dir"]
        if self._folder_limit is not None:
            limits = f"{self._room} and rest_bytes={format_size(self._folder_limit)} do"
            remedies = ["raise rest_bytes"]
        remedies += ["lower the budget", "close sessions"]
        if not self._drops:
            remedies.append("open the runtime with rest_full='drop'")
        return RestingError(
            f"{limits} not hold {format_size(n_bytes)} more beside the {format_size(self._total)} of resting "
            f"sessions and the {format_size(self._session_bytes)} that a switch takes; {', '.join(remedies[:-1])}, or "
            f"{remedies[-1]}"
        )
