"""The line in front of the cells: requests of many sessions and threads get them one at a time, in order of arrival."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from types import TracebackType

from edgekv.errors import SessionError

IDLE_S = 0.1  # for which a reply that nobody iterates keeps others waiting


class Line:
    """Who has the cells, and who waits for them.

    A request keeps its turn to its end, however many steps it has. Between two steps it *pauses*. A pause lets others
    pass if it lasts longer than IDLE_S, or if the thread that waits is the one that paused. Who comes back then waits
    again, behind those who are waiting.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # with a lock that a finalizer may take in the midst of a call
        # Places live as long as the calls that they are of, so none stays here that an interrupt kept from leaving.
        self._present: list[weakref.ref[Place]] = []  # those whose turn it is, all of one session
        self._waiting: list[weakref.ref[Place]] = []
        self._paused_since = 0.0
        self._closed = False

    def place(self, session: object, cancelled: threading.Event | None = None) -> Place:
        """A request that has not entered yet. cancelled: ends its waiting; call `wake` after it is set"""
        return Place(self, session, cancelled)

    def wake(self) -> None:
        """Have those who wait look whether they were cancelled."""
        with self._changed:
            self._changed.notify_all()

    def close(self, *, wait: bool = True) -> None:
        """Refuse everybody from now on. wait: cancel who is at work, and wait until that has paused or left"""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            me = threading.get_ident()
            while wait and (at_work := [p for p in _living(self._present) if p.thread not in (None, me)]):
                for place in at_work:
                    if place.cancelled is not None:
                        place.cancelled.set()
                self._changed.wait(IDLE_S)

    def _enter(self, place: Place) -> bool:
        me = threading.get_ident()
        with self._changed:
            self._check_open()
            if self._is_within(place, me):
                gc.collect()  # an interrupted call may be gone, and its place not yet
            if self._is_within(place, me):
                raise SessionError(
                    "another session is at work in this very call, such as one with a `progress`; use this one after it"
                )
            if self._is_with(place) and self._may_enter(place, me):  # it paused, and nobody passed
                self._take_turn(place, me)
                return True
            waits = weakref.ref(place)
            self._waiting.append(waits)
            try:
                while place.cancelled is None or not place.cancelled.is_set():
                    if self._may_enter(place, me):
                        self._take_turn(place, me)
                        return True
                    self._changed.wait(IDLE_S)
                    self._check_open()
                return False
            finally:
                self._waiting.remove(waits)
                self._changed.notify_all()

    def _enter_if_free(self, place: Place) -> bool:
        with self._changed:
            if self._closed or _living(self._present) or _living(self._waiting):
                return False
            self._take_turn(place, threading.get_ident())
            return True

    def _may_enter(self, place: Place, me: int) -> bool:
        present = _living(self._present)
        if any(p.thread not in (None, me) for p in present):
            return False
        if self._is_with(place):
            return True
        idle = time.monotonic() - self._paused_since >= IDLE_S  # nobody is at work
        return _living(self._waiting)[0] is place and (idle or all(p.last_thread == me for p in present))

    def _take_turn(self, place: Place, me: int) -> None:
        if not self._is_with(place):
            self._present = []  # they come back, if ever, as if they were new
        if place not in _living(self._present):
            self._present.append(weakref.ref(place))
        place.thread = place.last_thread = me

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("this session is closed; open another with Runtime.session()")

    def _is_within(self, place: Place, me: int) -> bool:
        """Whether this thread is at work for another session."""
        return any(p.thread == me and p.session is not place.session for p in _living(self._present))

    def _is_with(self, place: Place) -> bool:
        """Whether it is the turn of the session that a place is of."""
        return any(p.session is place.session for p in _living(self._present))

    def _pause(self, place: Place) -> None:
        with self._changed:
            place.thread = None
            self._paused_since = time.monotonic()

    def _leave(self, place: Place) -> None:
        with self._changed:
            place.thread = None
            self._present = [there for there in self._present if there() not in (None, place)]
            self._changed.notify_all()


def _living(places: list[weakref.ref[Place]]) -> list[Place]:
    return [place for there in places if (place := there()) is not None]


class Place:
    """One request in a line. Leave it, or use it in `with`; neither `pause` nor `leave` ever waits."""

    def __init__(self, line: Line, session: object, cancelled: threading.Event | None) -> None:
        self.session = session
        self.cancelled = cancelled
        self.thread: int | None = None  # that is at work; None = it has paused, or has no turn
        self.last_thread: int | None = None
        self._line = line

    def enter(self) -> bool:
        """Wait for the turn, if it is not this one's already; returns False, without it, where it was cancelled.

        Raises SessionError once the line is closed, and where this thread is at work for another session.
        """
        return self._line._enter(self)

    def enter_if_free(self) -> bool:
        """Take the turn if nobody has it; returns whether it has."""
        return self._line._enter_if_free(self)

    def pause(self) -> None:
        """Keep the turn between two steps, as long as nobody needs it."""
        self._line._pause(self)

    def leave(self) -> None:
        """Give the turn up."""
        self._line._leave(self)

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
