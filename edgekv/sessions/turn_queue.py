"""The queue for the cells: requests of many sessions and threads get them one at a time, in order of arrival."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from types import TracebackType

from edgekv.errors import SessionError

IDLE_S = 0.1  # longest wait for a reply that nobody iterates


class TurnQueue:
    """The tickets that have the cells, and those that wait for them.

    A ticket keeps its turn to its end, however many steps it has. Between two steps it *pauses*. Others pass it if the
    pause lasts longer than IDLE_S, or if the thread that waits is the one that paused. A ticket that was passed waits
    again, behind the others.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # its lock is reentrant: a finalizer may take it in the midst of a call
        # A ticket lives as long as its call, so a ticket that an interrupt kept from leaving does not stay here.
        self._present: list[weakref.ref[Ticket]] = []  # tickets with the turn, all of one session
        self._waiting: list[weakref.ref[Ticket]] = []
        self._paused_since = 0.0
        self._closed = False

    def ticket(self, session: object, cancelled: threading.Event | None = None) -> Ticket:
        """Return a ticket that has not entered yet. cancelled: ends its waiting; call `wake` after setting it"""
        return Ticket(self, session, cancelled)

    def wake(self) -> None:
        """Have waiting tickets check if they were cancelled."""
        with self._changed:
            self._changed.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """Refuse all tickets from now on. wait: cancel the calls at work, and wait until they have paused or left"""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            me = threading.get_ident()
            while wait and (at_work := [p for p in _living(self._present) if p.thread not in (None, me)]):
                for ticket in at_work:
                    if ticket.cancelled is not None:
                        ticket.cancelled.set()
                self._changed.wait(IDLE_S)

    def _enter(self, ticket: Ticket) -> bool:
        me = threading.get_ident()
        with self._changed:
            self._check_open()
            if self._is_within(ticket, me):
                gc.collect()  # an interrupted call may be gone before its ticket
            if self._is_within(ticket, me):
                raise SessionError(
                    "another session is at work in this very call, such as one with a `progress`; use this one after it"
                )
            if self._is_with(ticket) and self._may_enter(ticket, me):  # it paused, and no other passed it
                self._take_turn(ticket, me)
                return True
            waits = weakref.ref(ticket)
            self._waiting.append(waits)
            try:
                while ticket.cancelled is None or not ticket.cancelled.is_set():
                    if self._may_enter(ticket, me):
                        self._take_turn(ticket, me)
                        return True
                    self._changed.wait(IDLE_S)
                    self._check_open()
                return False
            finally:
                self._waiting.remove(waits)
                self._changed.notify_all()

    def _enter_if_free(self, ticket: Ticket) -> bool:
        with self._changed:
            if self._closed or _living(self._present) or _living(self._waiting):
                return False
            self._take_turn(ticket, threading.get_ident())
            return True

    def _may_enter(self, ticket: Ticket, me: int) -> bool:
        present = _living(self._present)
        if any(p.thread not in (None, me) for p in present):
            return False
        if self._is_with(ticket):
            return True
        idle = time.monotonic() - self._paused_since >= IDLE_S  # no thread is at work
        return _living(self._waiting)[0] is ticket and (idle or all(p.last_thread == me for p in present))

    def _take_turn(self, ticket: Ticket, me: int) -> None:
        if not self._is_with(ticket):
            self._present = []  # paused tickets that come back wait again
        if ticket not in _living(self._present):
            self._present.append(weakref.ref(ticket))
        ticket.thread = ticket.last_thread = me

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("this session is closed; open another with Runtime.session()")

    def _is_within(self, ticket: Ticket, me: int) -> bool:
        """Return True if this thread is at work for another session."""
        return any(p.thread == me and p.session is not ticket.session for p in _living(self._present))

    def _is_with(self, ticket: Ticket) -> bool:
        """Return True if the ticket's session has the turn."""
        return any(p.session is ticket.session for p in _living(self._present))

    def _pause(self, ticket: Ticket) -> None:
        with self._changed:
            ticket.thread = None
            self._paused_since = time.monotonic()

    def _leave(self, ticket: Ticket) -> None:
        with self._changed:
            ticket.thread = None
            self._present = [there for there in self._present if there() not in (None, ticket)]
            self._changed.notify_all()


def _living(tickets: list[weakref.ref[Ticket]]) -> list[Ticket]:
    return [ticket for there in tickets if (ticket := there()) is not None]


class Ticket:
    """One call in a queue. Leave it, or use it in `with`; neither `pause` nor `leave` ever waits."""

    def __init__(self, queue: TurnQueue, session: object, cancelled: threading.Event | None) -> None:
        self.session = session
        self.cancelled = cancelled
        self.thread: int | None = None  # the thread at work; None = the ticket has paused, or has no turn
        self.last_thread: int | None = None
        self._queue = queue

    def enter(self) -> bool:
        """Wait for the turn, unless the ticket has it; returns False, without the turn, if the ticket was cancelled.

        Raises SessionError once the queue is closed, and if this thread is at work for another session.
        """
        return self._queue._enter(self)

    def enter_if_free(self) -> bool:
        """Take the turn if it is free; returns True if the ticket has it."""
        return self._queue._enter_if_free(self)

    def pause(self) -> None:
        """Keep the turn between two steps, until another ticket needs it."""
        self._queue._pause(self)

    def leave(self) -> None:
        """Give the turn up."""
        self._queue._leave(self)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
