"""Sessions that requests continue: clients resend whole conversations, whose beginning a session has read already."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import edgekv
from edgekv.api.api_errors import ApiError, api_error_of
from edgekv.api.reply_request import Ended, Event, ReplyRequest
from edgekv.conversations.history import StoredHistory
from edgekv.loop.loop_channel import Mailbox
from edgekv.moving_ceiling import LEAST
from edgekv.planning.native_request import most_cells

from .cancel_flag import CancelFlag
from .session_reply import Replier
from .session_storage import SessionStorage
from .state_folder import StateFolder

log = logging.getLogger("edgekv.server")


@dataclass(slots=True, eq=False)
class PooledSession:
    """A session of the pool.

    path: where it is saved, or kept as it grows; None = nowhere
    n_answered: requests that it has answered
    stop: the flag of the request that it answers, and no other may have it; None = it is free
    """

    session: edgekv.Session
    path: Path | None = None
    n_answered: int = 0
    stop: CancelFlag | None = None


class SessionPool:
    """Answers requests with the sessions of one runtime, as many at a time as it has slots.

    open_runtime: opens the runtime, and another one once the process of the first has died
    storage: has the conversations that outlive the process, with the shared beginnings. Those that cannot be kept as
        they grow are saved after every reply
    swap_dir: for the logs of sessions, which are swapped out to them; None = the folder that TMPDIR names
    runtime, replier: those of now
    """

    def __init__(
        self,
        open_runtime: Callable[[], edgekv.Runtime],
        *,
        max_sessions: int,
        state: StateFolder | None = None,
        swap_dir: Path | None = None,
    ) -> None:
        self._open_runtime = open_runtime
        self._max_sessions = max_sessions
        self.storage = SessionStorage(state)
        self._swap_dir = swap_dir
        self._lock = threading.Lock()  # guards the lists below
        self._until_free: list[Mailbox] = []  # told when a session becomes free
        self._pooled: list[PooledSession] = []  # the least recently used one first
        self.n_restarts = 0
        self._memory: int | str | None = None  # the ceiling, since it was moved
        self.runtime = open_runtime()
        self._named: int | str = self.runtime.plan.ceiling_bytes  # the ceiling, other than the least
        self._begin()

    @property
    def sessions(self) -> list[edgekv.Session]:
        """The sessions that are kept, the least recently used one first."""
        return [pooled.session for pooled in self._pooled]

    def set_memory(self, memory: int | str) -> edgekv.Plan:
        """Move the ceiling, also of runtimes opened later; returns the plan. Raises as `Runtime.set_memory`."""
        plan = self.runtime.set_memory(memory)
        self._memory = memory
        if memory != LEAST:
            self._named = memory
        return plan

    def restore_memory(self) -> edgekv.Plan:
        """Move the ceiling back from the least to the one that was named last. Raises as `Runtime.set_memory`."""
        return self.set_memory(self._named)

    def ledger(self) -> tuple[edgekv.LedgerEntry, ...]:
        """Return who holds how much memory, as of the end of the step under way; () while no model is loaded."""
        try:
            return self.runtime.ledger
        except (edgekv.SessionError, edgekv.WorkerError):  # the process has died, and the next request opens another
            return ()

    def close(self) -> None:
        """Save all sessions, and free the model."""
        with suppress(edgekv.WorkerError):  # the worker has died; earlier saves are on the disk
            for pooled in self._pooled:
                self.storage.save(pooled.session, pooled.path, archive=True)
        self.runtime.close()

    def answer(
        self, request: ReplyRequest, emit: Callable[[Event | ApiError], None], stop: CancelFlag
    ) -> Iterator[Mailbox]:
        """Answer a request; call `emit` with the events. Raises ApiError and EdgeKVError.

        Yields each answer of the loop, or of another request, before it waits for it.
        """
        if not self.runtime.closed and not self.runtime.alive:  # its process ended while no request was at work
            self._give_up_runtime()
        if self.runtime.closed:
            self._open()
        try:
            yield from self._answer(request, emit, stop)
        except edgekv.WorkerError as error:
            log.warning("a request failed: %s", error)
            emit(api_error_of(error))  # the client need not wait until the model is open again
            self._give_up_runtime()
            with suppress(edgekv.EdgeKVError):  # the next request tries again, and says why it fails
                self._open()

    def _answer(self, request: ReplyRequest, emit: Callable[[Event], None], stop: CancelFlag) -> Iterator[Mailbox]:
        if stop:
            return
        with self.replier.stored(request, self._swap_dir) as history:
            while not stop:
                system = self.replier.pinned(request)
                yield from self._until_none_is_cancelled()
                with self._lock:
                    pooled, n_shared = self._choose(history, system, stop)
                end: list[Event] = []  # told once the session is free: who sees it may go on with it at once
                told = partial(_held_back, end, emit)
                try:
                    yield from self.replier.answer(pooled.session, request, history, told, stop, n_shared)
                    pooled.n_answered += 1
                    self._tell_eviction(pooled.session)
                except edgekv.SessionEvictedError:
                    pooled.session.close()
                    continue
                except edgekv.SwapError:
                    with self._lock:
                        if not self._make_room():
                            raise
                    continue
                finally:
                    self._free(pooled)
                for event in end:
                    emit(event)
                self.storage.save(pooled.session, pooled.path, archive=False)
                self._keep_to_limit()
                return

    def _tell_eviction(self, session: edgekv.Session) -> None:
        """Log that a conversation was evicted which one slot would have held whole, with the cells of all slots."""
        if not session.stats.evictions:
            return
        options, plan, n_tokens = self.runtime.options, self.runtime.plan, session.n_past
        n_slots, n_cells = options.parallel, plan.budget_cells
        n_alone = min(n_slots * n_cells, most_cells(options, plan.n_ctx_train))
        if n_cells < n_tokens <= n_alone:
            log.warning(
                "a conversation of %d tokens was evicted to the %d cells of one of %d slots; "
                "parallel=1 would give it some %d cells",
                *(n_tokens, n_cells, n_slots, n_alone),
            )

    def _free(self, pooled: PooledSession) -> None:
        """Note that a session's request has ended. It goes if it has no tokens, as after a refused request."""
        is_empty = pooled.session.closed or pooled.session.n_past == 0
        with self._lock:
            pooled.stop = None
            if is_empty:
                self._end(pooled)
            told, self._until_free = self._until_free, []
        for box in told:
            box.put(None)

    def _until_none_is_cancelled(self) -> Iterator[Mailbox]:
        """Wait for sessions whose request was cancelled: a client that stops a reply often asks for another one."""
        while (box := self._box_if_cancelled()) is not None:
            yield box
            box.get()

    def _box_if_cancelled(self) -> Mailbox | None:
        """Return a box that is told when a session becomes free, if the request of one was cancelled."""
        with self._lock:
            if not any(pooled.stop for pooled in self._pooled):
                return None
            self._until_free.append(Mailbox())
            return self._until_free[-1]

    def _choose(self, history: StoredHistory, system: str | None, stop: CancelFlag) -> tuple[PooledSession, int]:
        """Return the session with the longest common prefix, and how many tokens other histories begin with, too.

        A new session, if more than half of what that one has after its opening would be lost. It is not free any more.
        """
        fitting = [pooled for pooled in self._pooled if pooled.stop is None and pooled.session.system == system]
        seen = {pooled: pooled.session.common_prefix_length(history) for pooled in fitting}
        pooled = max(fitting, key=lambda pooled: seen[pooled], default=None)
        n_shared = 0 if pooled is None else seen[pooled]
        if pooled is None or self._loses(pooled.session.n_past, n_shared, history.n_opening):
            while len(self._pooled) >= self._max_sessions and self._make_room():
                pass
            session = self.runtime.session(system, history=self._swap_dir or True)
            pooled = PooledSession(session, self.storage.keep(session, self.runtime))
        else:
            self._pooled.remove(pooled)
        pooled.stop = stop
        self._pooled.append(pooled)
        return pooled, max(n_shared, history.n_opening)

    @staticmethod
    def _loses(n_past: int, n_shared: int, n_opening: int) -> bool:
        """Return True if a session that goes back loses most of what it has after the opening."""
        return 2 * max(0, n_shared - n_opening) < n_past - n_opening

    def _make_room(self) -> bool:
        """End the oldest session that answered a single request, such as a title; without one, the oldest of all.

        Returns False if none is free.
        """
        free = [pooled for pooled in self._pooled if pooled.stop is None]
        if not free:
            return False
        self._end(min(free, key=lambda pooled: pooled.n_answered > 1))
        return True

    def _keep_to_limit(self) -> None:
        """Remove what was used longest ago if all together take too much of the disk."""
        self.storage.count(self.runtime)
        with self._lock:
            self.storage.keep_to_limit(self._end_at)

    def _end_at(self, path: Path) -> None:
        """End the session with a path, and remove it, unless a request uses it."""
        pooled = next((pooled for pooled in self._pooled if pooled.path == path), None)
        if pooled is None:
            self.storage.remove(path)
        elif pooled.stop is None:
            self._end(pooled)

    def _end(self, pooled: PooledSession) -> None:
        self._pooled.remove(pooled)
        pooled.session.close()
        self.storage.remove(pooled.path)

    def _give_up_runtime(self) -> None:
        """Close the runtime, whose process has died, and forget its sessions."""
        self._pooled.clear()
        self.runtime.close()
        self.n_restarts += 1

    def _open(self) -> None:
        """Open another runtime, and load the saved sessions. An error here is not the fault of a request."""
        try:
            self.runtime = self._open_runtime()
            if self._memory is not None:
                self.runtime.set_memory(self._memory)
        except (edgekv.ConfigError, edgekv.InputError, edgekv.ModelError) as error:
            raise edgekv.EdgeKVError(f"the model cannot be opened again: {error}") from error
        self._begin()

    def _begin(self) -> None:
        """Begin with a runtime: load the newest sessions of the folder."""
        self.replier = Replier(self.runtime)
        found = self.storage.begin(self.runtime, self._max_sessions)
        self._pooled.extend(PooledSession(session, path, n_answered=2) for session, path in found)


def _held_back(end: list[Event], emit: Callable[[Event], None], event: Event) -> None:
    """Pass an event on, or keep it if it is the end of a reply."""
    if isinstance(event, Ended):
        end.append(event)
    else:
        emit(event)
