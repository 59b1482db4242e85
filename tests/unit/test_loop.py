"""The loop, driven step by step over replies that are scripts: whose turn it is, what waits, and how it ends."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

import edgekv
from edgekv.cells.feeds import Feed
from edgekv.generation.request import Progress
from edgekv.generation.stats import Stats
from edgekv.loop.loop import Loop
from edgekv.loop.loop_messages import (
    OF_ONE_REPLY,
    Abort,
    Call,
    Cancel,
    Close,
    Ended,
    ForkConversation,
    LoadConversation,
    MoveCeiling,
    NewConversation,
    Next,
    Raised,
    Reply,
    Stop,
)
from edgekv.loop.open_reply import Post
from edgekv.loop.slot_queue import IDLE_S, SOON_S

READ = Progress(1, 2, 1, 64)


class Cache:
    n_past = 0


class State:
    lost = ""

    def __init__(self, name):
        self.name = name

    def note(self):
        pass

    def evicted(self):
        return edgekv.SessionEvictedError(self.lost)


class Script:
    """A conversation whose replies are given as lists: a number feeds so many tokens, all else is yielded."""

    def __init__(self, name, done):
        self.name, self.done = name, done
        self.state = State(name)
        self.cancelled = threading.Event()
        self.cache = Cache()
        self.is_closed = False

    def reply(self, request, stats):
        try:
            for event in request:
                if self.cancelled.is_set():
                    stats.finish_reason = "cancelled"
                    return
                yield Feed(self.cache, range(event)) if isinstance(event, int) else event
            stats.finish_reason = "end"
        finally:
            self.done.append(f"{self.name} {stats.finish_reason or 'left'}")

    def close(self):
        self.is_closed = True

    def budgets(self):
        return f"budgets of {self.name}"

    def n_logged(self):
        return f"log of {self.name}"


class Engine:
    """An engine of scripts.

    batches: names of the conversations that each one fed; failing: caches that fail
    moves: ceilings and who was at work then; is_late: those at work have still to evict
    """

    def __init__(self, n_slots):
        self.n_slots, self.holding, self.closed = n_slots, set(), False
        self.done, self.batches, self.failing, self.names = [], [], set(), {}
        self.loaded = SimpleNamespace(decoder=self)
        self.is_shared = False
        self.at_work, self.moves, self.is_late = set(), [], True

    def new_conversation(self, system, logging):
        made = Script(system, self.done)
        self.names[made.cache] = system
        return made

    def load_conversation(self, path, replaced, *, keeps_log):
        return self.new_conversation(path, None)

    def fork(self, origin):
        return self.new_conversation(f"fork of {self.names[origin.cache]}", None)

    def decode(self, feeds):
        if any(feed.cache in self.failing for feed in feeds):
            raise edgekv.NativeError("no")
        self.batches.append("".join(sorted(self.names[feed.cache] for feed in feeds)))
        return [-1] * len(feeds)

    def moving(self, ceiling_bytes):
        self.moves.append(f"{ceiling_bytes} with {''.join(it.name for it in self.at_work)} at work")
        while self.is_late:
            yield
        return f"ceiling {ceiling_bytes}"

    def close(self):
        self.closed = True


class Driver:
    """Drives a loop by a clock of its own. Clients are names; `told` has what each message was answered."""

    def __init__(self, n_slots=1, names="abcd"):
        self.now = 0.0
        self.engine = Engine(n_slots)
        self.loop = Loop(self.engine, lambda: self.now)
        self.numbers = {name: i for i, name in enumerate(names)}
        for name, number in self.numbers.items():
            self.post(NewConversation(number, name))

    def post(self, message, client="me"):
        """Post a message; returns a list that takes its answer."""
        answers = []
        self.loop.take(Post(message, answers.append, client))
        return answers

    def begin(self, name, events, client=None, *, reports=False):
        """Begin a reply, by the number 10 higher than its conversation's; returns where its first answer comes."""
        number = self.numbers[name]
        return self.post(Reply(10 + number, number, events, None, Stats(), reports), client or name)

    def next(self, name, client=None):
        return self.post(Next(10 + self.numbers[name]), client or name)

    def run(self):
        """Do what can be done now; returns how long the loop would wait."""
        while (wait := self.loop.step()) == 0:
            pass
        return wait

    def wait(self, seconds):
        self.now += seconds
        return self.run()


def reason(answers):
    (ended,) = answers
    assert isinstance(ended, Ended)
    return ended.stats.finish_reason


def refused(answers):
    (raised,) = answers
    assert isinstance(raised, Raised)
    assert isinstance(raised.error, edgekv.SessionError)
    return str(raised.error)


def test_a_reply_works_only_for_an_answer():
    driver = Driver()
    first = driver.begin("a", [32, "one", 1, "two"])
    assert driver.run() is None
    assert (first, driver.engine.batches) == (["one"], ["a"])
    second = driver.next("a")
    assert second == []
    driver.run()
    assert (second, driver.engine.batches) == (["two"], ["a", "a"])
    end = driver.next("a")
    driver.run()
    assert reason(end) == "end"
    assert driver.next("a") == [Ended(None)]  # it is forgotten


def test_replies_have_their_turn_in_order_of_arrival():
    driver = Driver()
    for name in "cab":
        driver.begin(name, [32, name])
    driver.run()
    for name in "cab":
        driver.next(name)
        driver.run()
    assert driver.engine.batches == ["c", "a", "b"]


def test_a_reply_that_is_not_iterated_is_passed_and_goes_on_behind_the_others():
    driver = Driver()
    driver.begin("a", [32, "one", 1, "two"])
    driver.run()
    of_b, of_c = driver.begin("b", [32, "b"]), driver.begin("c", [32, "c"])
    assert driver.run() == pytest.approx(IDLE_S)
    assert of_b == []
    assert driver.wait(IDLE_S / 2) == pytest.approx(IDLE_S / 2)
    driver.wait(IDLE_S / 2)
    assert (of_b, of_c) == (["b"], [])
    second = driver.next("a")
    driver.run()
    assert second == []
    driver.wait(IDLE_S)
    assert (of_c, second) == (["c"], [])
    driver.wait(IDLE_S)
    assert second == ["two"]
    assert driver.engine.holding == {driver.loop.conversation(0).state}


def test_a_client_that_waits_itself_is_passed_at_once():
    driver = Driver()
    driver.begin("a", [32, "one"], "me")
    driver.run()
    of_b = driver.begin("b", [32, "b"], "me")
    driver.run()
    assert of_b == ["b"]


@pytest.mark.parametrize("begun", [False, True])
def test_cancel_reaches_one_that_waits(begun):
    driver = Driver()
    if begun:
        driver.begin("b", [32, "b", 1])
        driver.run()
    driver.begin("a", [32, "one"], "b" if begun else "a")
    driver.run()
    waits = driver.next("b", "me") if begun else driver.begin("b", [32])
    driver.run()
    assert waits == []
    driver.post(Cancel(1))
    driver.run()
    assert reason(waits) == "cancelled"
    assert driver.loop._slots.waiting == []
    assert driver.engine.batches == (["b", "a"] if begun else ["a"])


def test_nobody_is_at_work_while_a_client_looks_at_the_progress():
    driver = Driver(n_slots=2)
    progress = driver.begin("a", [32, READ, 32, "one"], reports=True)
    of_b = driver.begin("b", [32, "b"])
    driver.run()
    assert (progress, of_b, driver.engine.batches) == ([READ], [], ["a"])
    assert driver.post(Call(1, "n_logged")) == ["log of b"]
    assert driver.post(Call(0, "budgets"), "a") == ["budgets of a"]
    others = LoadConversation(9, "f", None, True, False), ForkConversation(9, 1)
    for message in (Call(1, "budgets"), Reply(30, 2, [], None, Stats(), False), *others):
        assert "another session is at work in this very call" in refused(driver.post(message, "a"))
    waits = driver.post(Call(2, "budgets"), "another")
    driver.run()
    assert waits == []
    driver.next("a")
    assert driver.run() == pytest.approx(SOON_S)  # b has paused, and comes back soon
    driver.wait(SOON_S)
    assert (of_b, driver.engine.batches) == (["b"], ["a", "b", "a"])
    assert waits == []
    driver.wait(IDLE_S)
    assert waits == ["budgets of c"]


def test_a_ceiling_moves_between_two_blocks_and_ends_when_those_at_work_have_evicted():
    driver = Driver()
    of_a = driver.begin("a", [32, 32, 32, 32, "one"])
    driver.loop.step()
    first, second = driver.post(MoveCeiling(5)), driver.post(MoveCeiling(6))
    driver.loop.step()
    assert (driver.engine.moves, first) == (["5 with a at work"], [])
    driver.loop.step()
    driver.engine.is_late = False
    driver.loop.step()
    assert (of_a, first, second) == ([], ["ceiling 5"], ["ceiling 6"])
    driver.run()
    assert (of_a, driver.engine.batches) == (["one"], ["a", "a", "a", "a"])


def test_a_ceiling_does_not_move_while_logits_are_still_to_be_used():
    driver = Driver()
    driver.engine.is_late = False
    driver.begin("a", [32, READ, 32, "one"], reports=True)
    driver.run()
    moved = driver.post(MoveCeiling(5), client="b")
    assert (driver.run(), moved) == (None, [])
    with pytest.raises(edgekv.SessionError, match="at work in this very call"):
        raise driver.post(MoveCeiling(6), client="a")[0].error
    driver.next("a")
    driver.run()
    assert moved == ["ceiling 5"]


def test_a_reply_whose_cells_a_move_lost_ends_with_the_error():
    driver = Driver()
    driver.engine.is_late = False
    of_a = driver.begin("a", [32, 32, "one"])
    driver.loop.step()
    driver.loop.conversation(0).state.lost = "gone"
    driver.post(MoveCeiling(5))
    driver.run()
    assert (str(of_a[0].error), driver.engine.batches) == ("gone", [])


def test_moves_that_wait_are_refused_when_the_loop_ends():
    driver = Driver()
    driver.begin("a", [32, 32, "one"])
    driver.loop.step()
    moved = [driver.post(MoveCeiling(5)), driver.post(MoveCeiling(6))]
    driver.loop.step()
    driver.post(Stop())
    driver.run()
    assert [str(it.error) for [it] in moved] == ["this session is closed; open another with Runtime.session()"] * 2


def test_two_clients_look_at_the_progress_at_once():
    """Both have logits that are still to be used."""
    driver = Driver(n_slots=2)
    answers = [driver.begin(name, [1, READ, 1, "one"], reports=True) for name in "ab"]
    driver.run()
    assert (answers, driver.engine.batches) == ([[READ], [READ]], ["ab"])
    driver.next("b")
    assert driver.run() is None
    assert driver.engine.batches == ["ab"]
    driver.next("a")
    driver.run()
    assert driver.engine.batches == ["ab", "ab"]


def test_progress_that_nobody_wants_is_not_told():
    driver = Driver()
    assert (driver.begin("a", [32, READ, 32, "one"]), driver.run()) == (["one"], None)


def test_replies_share_batches_and_wait_for_those_that_come_back_soon():
    driver = Driver(n_slots=3)
    for name in "abc":
        driver.begin(name, [1, name, 1, name])
    driver.run()
    driver.next("a"), driver.next("b")
    assert driver.run() == pytest.approx(SOON_S)
    driver.next("c")
    driver.run()
    assert driver.engine.batches == ["abc", "abc"]
    assert driver.engine.is_shared


def test_a_reply_that_came_back_late_is_not_waited_for():
    driver = Driver(n_slots=2)
    for name in "ab":
        driver.begin(name, [1, name] * 3)
    driver.run()
    driver.next("a")
    driver.wait(SOON_S)
    driver.next("b")
    driver.wait(SOON_S)
    assert driver.engine.batches == ["ab", "a", "b"]
    driver.wait(SOON_S)
    driver.next("a")  # late, as b was
    assert driver.run() is None
    assert driver.engine.batches == ["ab", "a", "b", "a"]


def test_a_feed_that_fails_fails_alone():
    driver = Driver(n_slots=3)
    answers = {name: driver.begin(name, [1, name]) for name in "abc"}
    driver.engine.failing.add(driver.loop.conversation(1).cache)
    driver.run()
    driver.wait(SOON_S)  # a has paused, and comes back soon
    driver.wait(SOON_S)  # b comes back soon, too, although its reply has ended
    assert (answers["a"], answers["c"]) == (["a"], ["c"])
    assert isinstance(answers["b"][0].error, edgekv.NativeError)
    assert driver.engine.batches == ["a", "c"]


@pytest.mark.parametrize("state", ["in line", "feeding", "reporting", "paused", "passed", "ended"])
def test_a_reply_is_left_in_any_state(state):
    driver = Driver(n_slots=1)
    if state == "in line":
        driver.begin("b", ["b"])
        driver.run()
        driver.begin("a", [32, "one"])
    else:
        driver.begin("a", [READ, 32] if state == "reporting" else [32, "one", 1], reports=state == "reporting")
        if state != "feeding":
            driver.run()
        else:
            driver.loop.step()
    if state == "passed":
        driver.begin("b", ["b"], "a")
        driver.run()
    if state == "ended":
        driver.post(Close(0))
    (ended,) = driver.post(Abort(10))
    assert isinstance(ended, Ended)
    assert driver.engine.done == {"in line": [], "ended": ["a cancelled"]}.get(state, ["a left"])
    assert driver.post(Abort(10)) == [Ended(None)]
    of_c = driver.begin("c", ["c"], "a" if state == "passed" else "b")
    driver.run()
    assert of_c == ["c"]


def test_a_reply_that_its_client_forgot_ends_before_the_next_one():
    driver = Driver()
    driver.begin("a", [32, "one", 1])
    driver.run()
    again = driver.post(Reply(50, 0, [32, "again"], None, Stats(), False), "a")
    driver.run()
    assert again == ["again"]
    assert driver.engine.done == ["a cancelled"]


def test_a_reply_that_its_client_forgot_ends_before_a_fork():
    driver = Driver()
    driver.begin("a", [32, "one", 1])
    driver.run()
    answer = driver.post(ForkConversation(9, 0), "a")
    driver.run()
    assert (answer, driver.engine.done) == ([None], ["a cancelled"])
    assert driver.loop.conversation(9).name == "fork of a"


@pytest.mark.parametrize("paused", [True, False])
def test_a_conversation_is_closed_in_the_midst_of_its_reply(paused):
    driver = Driver()
    first = driver.begin("a", [32, "one", 1])
    conversation = driver.loop.conversation(0)
    driver.run() if paused else driver.loop.step()
    assert driver.post(Close(0)) == [None]
    assert conversation.is_closed == paused
    driver.run()
    assert conversation.is_closed
    assert reason(driver.next("a") if paused else first) == "cancelled"
    assert driver.engine.done == ["a cancelled"]


def test_the_end_waits_for_who_is_at_work_and_refuses_who_waits():
    driver = Driver(n_slots=1)
    at_work = driver.begin("a", [READ, 32, "one"], reports=True)
    waits = driver.begin("b", [32])
    driver.run()
    stopped = driver.post(Stop())
    driver.run()
    assert (at_work, stopped) == ([READ], [])
    assert "closed" in refused(waits)
    assert "closed" in refused(driver.post(NewConversation(9, "z")))
    end = driver.next("a")
    driver.run()
    assert reason(end) == "cancelled"
    assert (stopped, driver.engine.closed) == ([None], True)


def test_the_end_does_not_wait_for_the_client_that_wants_it():
    driver = Driver()
    driver.begin("a", [READ, 32, "one"], "me", reports=True)
    driver.run()
    stopped = driver.post(Stop(), "me")
    driver.run()
    assert (stopped, driver.engine.done) == ([None], ["a left"])


def test_a_batch_waits_for_a_reply_whose_progress_was_looked_at():
    """The time of that look is no pause."""
    driver = Driver(2)
    driver.now = 1.0
    driver.begin("a", [READ, "one", 1], reports=True)
    driver.begin("b", [1, "x"])
    driver.loop.step()
    piece = driver.next("a")
    driver.loop.step()
    driver.loop.step()
    assert piece == ["one"]
    assert driver.loop.step() == pytest.approx(SOON_S)
    assert driver.engine.batches == []


@pytest.mark.parametrize(("client", "wait"), [(7, SOON_S), (OF_ONE_REPLY | 7, 0.0)])
def test_a_client_of_one_reply_is_not_waited_for_after_it(client, wait):
    driver = Driver(2)
    driver.begin("a", [1], client)
    driver.run()
    driver.begin("b", [1, "x"])
    driver.loop.step()
    assert driver.loop.step() == pytest.approx(wait)
