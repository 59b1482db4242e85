"""The queue in front of the cells: who comes when, who passes whom, and what ends a wait."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from edgekv.errors import SessionError
from edgekv.sessions import turn_queue
from edgekv.sessions.turn_queue import TurnQueue

LIMIT_S = 60


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Nobody passes who pauses, unless a test says otherwise; and who waits looks up often enough."""
    at(monkeypatch, 0)


def at(monkeypatch, seconds):
    """Set the queue's clock."""
    monkeypatch.setattr(turn_queue, "time", SimpleNamespace(monotonic=lambda: seconds))


@pytest.fixture
def queue():
    return TurnQueue()


class Client:
    """A thread that enters when it is told to, and leaves when it is told to."""

    def __init__(self, queue, session, cancelled=None, log=None):
        self.ticket = queue.ticket(session, cancelled)
        self.entered = threading.Event()
        self.result = None
        self._leave, self._log = threading.Event(), log
        self._queue = queue
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        with self.ticket:
            try:
                self.result = self.ticket.enter()
            except SessionError as error:
                self.result = error
            if self._log is not None:
                self._log.append(self)
            self.entered.set()
            self._leave.wait(LIMIT_S)

    def start(self):
        """Start, and return when it is in or waits."""
        self._thread.start()
        for _ in range(100 * LIMIT_S):
            if self.entered.is_set() or any(there() is self.ticket for there in self._queue._waiting):
                return self
            threading.Event().wait(0.01)
        raise AssertionError("it neither enters nor waits")

    def leave(self):
        self._leave.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def test_those_who_wait_come_in_order_of_arrival(queue):
    log = []
    clients = [Client(queue, object(), log=log).start() for _ in range(5)]
    for i, client in enumerate(clients):
        assert client.entered.wait(LIMIT_S)
        assert log == clients[: i + 1]
        client.leave()
    assert [client.result for client in clients] == [True] * 5


def test_who_pauses_keeps_the_turn_unless_it_is_long(queue, monkeypatch):
    mine = queue.ticket(object())
    assert mine.enter()
    mine.pause()
    other = Client(queue, object()).start()
    assert not other.entered.is_set()
    assert mine.enter()
    mine.pause()
    at(monkeypatch, turn_queue.IDLE_S)
    assert other.entered.wait(LIMIT_S)
    third = Client(queue, object()).start()
    mine_again = threading.Thread(target=mine.enter, daemon=True)
    mine_again.start()
    other.leave()
    assert third.entered.wait(LIMIT_S)  # who comes back is the last
    third.leave()
    mine_again.join(LIMIT_S)
    assert not mine_again.is_alive()


def test_nobody_passes_who_is_at_work(queue, monkeypatch):
    with queue.ticket(object()) as mine:
        mine.enter()
        at(monkeypatch, 1e9)
        other = Client(queue, object()).start()
        assert not other.entered.wait(3 * turn_queue.IDLE_S)
    assert other.entered.wait(LIMIT_S)
    other.leave()


def test_a_thread_passes_itself_at_once_but_not_while_it_works(queue):
    one, other = queue.ticket(object()), queue.ticket(object())
    assert one.enter()
    with pytest.raises(SessionError, match="at work in this very call"):
        other.enter()
    one.pause()
    assert other.enter()
    other.pause()
    assert one.enter()
    one.leave()
    other.leave()  # has no turn any more
    assert other.enter_if_free()


def test_the_session_whose_turn_it_is_comes_in_again(queue):
    session = object()
    reply, look = queue.ticket(session), queue.ticket(session)
    assert reply.enter()
    with look:
        assert look.enter()
    assert not queue.ticket(object()).enter_if_free()
    reply.pause()
    again = Client(queue, session).start()
    assert again.entered.wait(LIMIT_S)  # from another thread, too
    back = Client(queue, session)
    back.ticket = reply
    assert not back.start().entered.is_set()  # two never work at a time
    again.leave()
    assert back.entered.wait(LIMIT_S)
    back.leave()
    assert queue.ticket(object()).enter_if_free()


def test_a_turn_that_became_free_is_for_those_who_wait(queue):
    mine = queue.ticket(object())
    assert mine.enter()
    other = Client(queue, object()).start()
    with queue.changed:  # the one that waits has not woken up yet
        mine.leave()
        late = queue.ticket(object())
        assert not late.enter_if_free()
    assert other.entered.wait(LIMIT_S)
    other.leave()


def test_cancel_ends_a_wait_and_no_other(queue):
    cancelled = threading.Event()
    with queue.ticket(object()) as mine:
        mine.enter()
        one, other = Client(queue, object(), cancelled).start(), Client(queue, object()).start()
        cancelled.set()
        queue.wake()
        assert one.entered.wait(LIMIT_S)
        assert one.result is False
        assert not other.entered.is_set()
        one.leave()
    assert other.entered.wait(LIMIT_S)
    other.leave()


def test_closing_refuses_all_and_cancels_who_works(queue):
    cancelled = threading.Event()
    working = Client(queue, object(), cancelled).start()
    assert working.entered.wait(LIMIT_S)
    waiting = Client(queue, object()).start()
    closing = threading.Thread(target=queue.close, daemon=True)
    closing.start()
    assert cancelled.wait(LIMIT_S)
    assert waiting.entered.wait(LIMIT_S)
    assert "closed" in str(waiting.result)
    assert closing.is_alive()
    working.leave()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    with pytest.raises(SessionError, match="closed"):
        queue.ticket(object()).enter()
    waiting.leave()


def test_a_turn_that_takes_no_waiting_is_had_for_a_block(queue):
    """By the session whose reply has paused, by one that is at work in this thread, and if a slot is free."""
    session = object()
    with queue.turn_if_free(session) as has_turn:
        assert has_turn
        with queue.turn_if_free(session) as has_turn_again:
            assert has_turn_again
        assert not queue.ticket(session).enter_if_free()  # nobody takes it within its own call
    reply = queue.ticket(session)
    assert reply.enter()
    reply.pause()
    other = Client(queue, object()).start()  # waits for the pause to become long
    with queue.turn_if_free(session) as has_turn:
        assert has_turn
    assert not other.entered.is_set()
    reply.leave()
    assert other.entered.wait(LIMIT_S)
    other.leave()


def test_nobody_has_a_turn_without_waiting_while_others_are_at_work(queue):
    session, other = object(), object()
    reply = queue.ticket(session)
    assert reply.enter()
    reply.pause()
    with queue.turn_if_free(other) as has_turn:
        assert not has_turn  # the session that paused has the only slot
    at_work = Client(queue, session).start()
    for one in (session, other):
        with queue.turn_if_free(one) as has_turn:
            assert not has_turn
    at_work.leave()
    with queue.ticket(session) as mine:
        assert mine.enter()
        with queue.turn_if_free(other) as has_turn:
            assert not has_turn  # such as a finalizer in the midst of this thread's call
    queue.close()
    with queue.turn_if_free(session) as has_turn:
        assert not has_turn


def test_a_session_that_waits_for_its_part_of_a_step_is_left_alone():
    queue = TurnQueue(n_slots=2)
    session = object()
    stepping = Client(queue, session).start()
    assert stepping.entered.wait(LIMIT_S)
    stepping.ticket.in_step = True
    for one, expected in ((session, False), (object(), True)):
        with queue.turn_if_free(one) as has_turn:
            assert has_turn == expected
    queue.stepping = True
    with queue.turn_if_free(object()) as has_turn:
        assert not has_turn
    queue.stepping = False
    stepping.leave()
