"""The queue for the cells: requests of many sessions and threads get them in order of arrival, a slot each."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from edgekv.errors import SessionError

IDLE_S = 0.1  # longest wait for a reply that nobody iterates
SOON_S = 0.003  # longest wait of a step for a reply that pauses


class TurnQueue:
    """The tickets that have a slot of the cells, and those that wait for one.

    A ticket keeps its turn to its end, however many steps it has. Between two steps it *pauses*. If all slots are
    taken, others pass it if the pause lasts longer than IDLE_S, or if the thread that waits is the one that paused. A
    ticket that was passed waits again, behind the others.

    However many slots there are, one thread is at work at a time. It lets others work while it waits for its part of a
    step (`Steps`).

    n_slots: sessions that may have a turn at a time
    changed: guards everything here, and is notified of every change
    stepping: a step is computed, and nobody may work meanwhile
    """

    def __init__(self, n_slots: int = 1) -> None:
        self.n_slots = n_slots
        self.changed = threading.Condition()  # its lock is reentrant: a finalizer may take it in the midst of a call
        self.stepping = False
        # A ticket lives as long as its call, so a ticket that an interrupt kept from leaving does not stay here.
        self._present: list[weakref.ref[Ticket]] = []  # tickets with a turn, of at most n_slots sessions
        self._waiting: list[weakref.ref[Ticket]] = []
        self._closed = False

    def ticket(self, session: object, cancelled: threading.Event | None = None) -> Ticket:
        """Return a ticket that has not entered yet. cancelled: ends its waiting; call `wake` after setting it"""
        return Ticket(self, session, cancelled)

    @contextmanager
    def turn_if_free(self, session: object) -> Iterator[bool]:
        """Take the turn of a session for this block if that takes no waiting; yields True if this thread has it.

        Any thread may call this, in a finalizer too.
        """
        if self._is_at_work(session):
            yield True
            return
        with self.ticket(session) as ticket:
            yield ticket.enter_if_free()

    def present(self) -> list[Ticket]:
        """Return the tickets that have a turn."""
        return _living(self._present)

    def is_shared(self) -> bool:
        """Return True if several sessions have a turn."""
        return len(self._sessions()) > 1

    def is_busy(self, me: int | None = None) -> bool:
        """Return True if a thread is at work, or a step is computed. me: a thread that does not count"""
        return self.stepping or any(p.thread not in (None, me) and not p.in_step for p in self.present())

    def is_awaited(self) -> bool:
        """Return True if a ticket that waits may enter once nobody is at work."""
        waiting = _living(self._waiting)
        with_turn = [self._of(w.session) for w in waiting]
        if any(own and all(p.thread is None for p in own) for own in with_turn):
            return True
        return len(waiting) > 0 and not with_turn[0] and len(self._sessions()) < self.n_slots

    def wake(self) -> None:
        """Have waiting tickets check if they were cancelled."""
        with self.changed:
            self.changed.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """Refuse all tickets from now on. wait: cancel the calls at work, and wait until they have paused or left"""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
            me = threading.get_ident()
            while wait and (at_work := [p for p in self.present() if p.thread not in (None, me)]):
                for ticket in at_work:
                    if ticket.cancelled is not None:
                        ticket.cancelled.set()
                self.changed.wait(IDLE_S)

    def _enter(self, ticket: Ticket) -> bool:
        me = threading.get_ident()
        with self.changed:
            self._check_open()
            ticket.note_pause()
            if self._is_within(ticket, me):
                gc.collect()  # an interrupted call may be gone before its ticket
            if self._is_within(ticket, me):
                raise SessionError(
                    "another session is at work in this very call, such as one with a `progress`; use this one after it"
                )
            if self._of(ticket.session) and self._may_enter(ticket, me):  # it paused, and no other passed it
                self._take_turn(ticket, me)
                return True
            waits = weakref.ref(ticket)
            self._waiting.append(waits)
            try:
                while ticket.cancelled is None or not ticket.cancelled.is_set():
                    if self._may_enter(ticket, me):
                        self._take_turn(ticket, me)
                        return True
                    self.changed.wait(IDLE_S)
                    self._check_open()
                return False
            finally:
                self._waiting.remove(waits)
                self.changed.notify_all()

    def _enter_if_free(self, ticket: Ticket) -> bool:
        with self.changed:
            own = self._of(ticket.session)
            if self._closed or self.is_busy() or any(p.in_step for p in own):
                return False
            if not own and (_living(self._waiting) or len(self._sessions()) >= self.n_slots):
                return False
            self._take_turn(ticket, threading.get_ident())
            return True

    def _is_at_work(self, session: object) -> bool:
        """Return True if this thread is at work for a session."""
        me = threading.get_ident()
        with self.changed:
            return any(p.thread == me for p in self._of(session))

    def _sessions(self) -> dict[object, list[Ticket]]:
        """Return the sessions that have a turn, each with its tickets."""
        found: dict[object, list[Ticket]] = {}
        for ticket in self.present():
            found.setdefault(ticket.session, []).append(ticket)
        return found

    def _of(self, session: object) -> list[Ticket]:
        """Return the tickets of a session that has a turn."""
        return [p for p in self.present() if p.session is session]

    def _may_enter(self, ticket: Ticket, me: int) -> bool:
        if self.is_busy(me):
            return False
        if own := self._of(ticket.session):
            return all(p.thread in (None, me) for p in own)
        if _living(self._waiting)[0] is not ticket:
            return False
        sessions = self._sessions()
        return len(sessions) < self.n_slots or self._passed(sessions, me) is not None

    def _passed(self, sessions: dict[object, list[Ticket]], me: int) -> list[Ticket] | None:
        """Return the tickets of a session that this thread may pass; None = there is none."""
        idle_since = time.monotonic() - IDLE_S
        for tickets in sessions.values():
            is_idle = all(p.paused_since <= idle_since for p in tickets)
            if all(p.thread is None for p in tickets) and (is_idle or all(p.last_thread == me for p in tickets)):
                return tickets
        return None

    def _take_turn(self, ticket: Ticket, me: int) -> None:
        sessions = self._sessions()
        if ticket.session not in sessions and len(sessions) >= self.n_slots:
            passed = self._passed(sessions, me) or ()  # paused tickets that come back wait again
            self._present = [there for there in self._present if there() not in passed]
        if ticket not in self.present():
            self._present.append(weakref.ref(ticket))
        ticket.thread = ticket.last_thread = me

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("this session is closed; open another with Runtime.session()")

    def _is_within(self, ticket: Ticket, me: int) -> bool:
        """Return True if this thread is at work for another session."""
        return any(p.thread == me and p.session is not ticket.session for p in self.present())

    def _pause(self, ticket: Ticket) -> None:
        with self.changed:
            ticket.thread = None
            ticket.paused_since = time.monotonic()
            if self.n_slots > 1:
                self.changed.notify_all()  # others may work, or begin a step

    def _leave(self, ticket: Ticket) -> None:
        with self.changed:
            ticket.thread = None
            ticket.in_step = False
            self._present = [there for there in self._present if there() not in (None, ticket)]
            self.changed.notify_all()


def _living(tickets: list[weakref.ref[Ticket]]) -> list[Ticket]:
    return [ticket for there in tickets if (ticket := there()) is not None]


class Ticket:
    """One call in a queue. Leave it, or use it in `with`; neither `pause` nor `leave` ever waits."""

    def __init__(self, queue: TurnQueue, session: object, cancelled: threading.Event | None) -> None:
        self.session = session
        self.cancelled = cancelled
        self.thread: int | None = None  # the thread at work; None = the ticket has paused, or has no turn
        self.last_thread: int | None = None
        self.in_step = False  # the thread waits for its part of a step, and others may work
        self.paused_since = 0.0
        self.n_read = 0  # tokens of texts that it had in steps (`Steps`)
        self.owed_s = 0.0  # seconds that replies may have before its next such step
        self.comes_back_soon = True  # its last pause was too short for a step to begin without it
        self._queue = queue

    def enter(self) -> bool:
        """Wait for the turn, unless the ticket has it; returns False, without the turn, if the ticket was cancelled.

        Raises SessionError once the queue is closed, and if this thread is at work for another session.
        """
        return self._queue._enter(self)

    def enter_if_free(self) -> bool:
        """Take the turn, without waiting, if nobody is at work; returns True if the ticket has it."""
        return self._queue._enter_if_free(self)

    def pause(self) -> None:
        """Keep the turn between two steps, until another ticket needs it."""
        self._queue._pause(self)

    def note_pause(self) -> None:
        """Note how long the pause was that ends now."""
        if self.last_thread is not None:
            self.comes_back_soon = time.monotonic() - self.paused_since <= SOON_S

    def leave(self) -> None:
        """Give the turn up."""
        self._queue._leave(self)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
