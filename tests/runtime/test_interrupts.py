"""Whatever is raised, at whatever line: cells, log and turns agree at the next use, and nothing is fed twice or lost."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
from small import words

import edgekv
from edgekv.binding.cache import Cache
from edgekv.engine.sampler import GREEDY
from edgekv.prompt.turns import Turns

FOLDER = str(Path(edgekv.__file__).parent) + os.sep
SETTINGS = {"memory": "4GiB", "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16}
ROOMY = SETTINGS | {"budget": 400, "policy": "keydiff"}
TIGHT = SETTINGS | {"budget": 48}
ERRORS = itertools.cycle([KeyboardInterrupt, MemoryError])
QUESTION = "And then?"


def lines_of(work):
    """The lines of edgekv that a piece of work passes, in their order."""
    passed = []
    run_at(work, -1, None, passed)
    return passed


def run_at(work, k, error, passed=None):
    """Run a piece of work, and raise an error at the k-th line of edgekv that it passes; returns whether that was raised.

    One that is raised in a finalizer goes no further.
    """
    n = 0

    def local(frame, event, _):
        nonlocal n
        if event == "line":
            if passed is not None:
                passed.append((frame.f_code.co_filename, frame.f_lineno))
            n += 1
            if n == k + 1:
                raise error
        return local

    def trace(frame, _event, _):
        return local if frame.f_code.co_filename.startswith(FOLDER) else None

    before, hook = sys.gettrace(), sys.unraisablehook
    sys.unraisablehook = lambda _: None
    sys.settrace(trace)
    try:
        work()
    except (KeyboardInterrupt, MemoryError):
        return True
    finally:
        sys.settrace(before)
        sys.unraisablehook = hook
    return False


def points(passed, step):
    """The first and the last time of every line, and every step-th one."""
    first = {line: k for k, line in reversed(list(enumerate(passed)))}
    last = {line: k for k, line in enumerate(passed)}
    return sorted({*first.values(), *last.values(), *range(0, len(passed), step)})


@pytest.fixture
def fed(monkeypatch):
    """Tokens by position, as caches take them, whatever is raised meanwhile."""
    seen = {}

    def watched(name, tokens_of):
        method = getattr(Cache, name)

        def call(cache, *arguments, **further):
            before, tokens = cache.n_past, tokens_of(*arguments)
            try:
                method(cache, *arguments, **further)
            finally:
                seen.update(zip(range(before, cache.n_past), tokens, strict=False))

        monkeypatch.setattr(Cache, name, call)

    drafted = []
    watched("feed", lambda tokens: list(tokens))
    watched("feed_draft", lambda token, draft: drafted.__setitem__(slice(None), draft) or [token])
    watched("accept", lambda: [drafted.pop(0)])
    return seen


def state_of(session):
    """What a conversation of this process is beside its cells: turns and pending token."""
    state = session._access.conversation._state
    return state.turns, state.pending


def log_of(session):
    log = session._access.conversation._past.log
    return log.read(0, len(log)).tolist()


def say(session, text=QUESTION, n=4, **options):
    return list(session.chat(text, max_tokens=n, sampling=GREEDY, allow_loops=True, **options))


class Told:
    """A session that was told something, and what it is at every number of tokens.

    start: a snapshot of it; before: tokens fed, state of the turns and pending token then
    tokens: all that were fed or said, and those that come if it is told more
    timeline: (number of tokens, state of the turns from then on), ascending
    """

    def __init__(self, runtime, fed, system="Be brief."):
        self.runtime, self.fed = runtime, fed
        opening = Turns(runtime.model, system).opening().count()
        self.timeline = [(0, "new"), (1, "opening"), (opening + 1, "user")]
        with runtime.session(system, log=True) as session:
            for text in ("What was it?", words(12)):
                self.note(session, lambda session, text=text: say(session, text))
            self.start, self.before = session.snapshot(), (session.n_past, *state_of(session))

    def note(self, session, act):
        """Have an act told to a session, and note what it did."""
        n = session.n_past
        if n:
            self.timeline.append((n + 1, "user"))
        act(session)
        if session.stats.prompt_tokens:
            self.timeline.append((n + session.stats.prompt_tokens, "assistant"))
        self.tokens = log_of(session) + list(state_of(session)[1])

    def again(self):
        """A session as this one was at its snapshot."""
        session = self.runtime.session(log=True, start=self.start)
        assert session.n_past == self.before[0]  # it has begun
        self.fed.clear()
        self.fed.update(enumerate(self.tokens[: self.before[0]]))
        return session

    def turns_at(self, n):
        return next(state for position, state in reversed(self.timeline) if position <= n)


def check(told, session, replies, path):
    """All of a session agrees, and it goes on as its tokens say; a saved one does, too. Returns what it read and said."""
    session.save(path)  # the first use after it
    n, (turns, pending), log = session.n_past, state_of(session), log_of(session)
    assert len(log) == n
    assert log == [told.fed[i] for i in range(n)] == told.tokens[:n]
    assert turns == told.turns_at(n)
    assert pending in ((), tuple(told.tokens[n : n + 1]))
    key = (tuple(log), turns, pending, session.n_cells, tuple(session.kept_positions(1, 1)))
    next_turn = Turns(told.runtime.model, session.system)
    next_turn.state = "new" if turns == "opening" else turns
    tokens = [] if turns == "opening" else [*log, *pending]
    tokens += next_turn.turn([QUESTION]).tokens()
    reply = say(session)
    assert log_of(session)[: len(tokens)] == tokens
    assert replies.setdefault(key, reply) == reply
    with told.runtime.load_session(path, instead_of=session) as loaded:
        assert (loaded.n_past, log_of(loaded), state_of(loaded)) == (n, log, (turns, pending))
        assert say(loaded) == reply
    return tokens, reply


def disturb(told, act, path, step, further=lambda session: None):
    """Raise at every line that act(session) passes, and check; returns replies by the tokens that were read.

    further: checks a session before it is used
    """
    replies, checked, n_raised = {}, {}, 0
    with told.again() as session:
        passed = lines_of(lambda: act(session))
    for k in points(passed, step):
        try:
            with told.again() as session:
                n_raised += run_at(lambda: act(session), k, next(ERRORS))
                further(session)
                tokens, reply = check(told, session, replies, path)
        except BaseException as error:
            error.add_note(f"raised at line {k}: {passed[k]}")
            raise
        checked[tuple(tokens)] = reply
    print(len(passed), n_raised, len(checked))
    assert n_raised > 100
    return checked


@pytest.fixture(scope="module")
def small_model(tiny_model):
    return tiny_model(n_layer=2, n_ctx_train=2048)


@pytest.fixture
def open_told(small_model, fed, talkative):
    """A function that opens a runtime with a session that was told something."""
    opened = []

    def open_told(**options):
        opened.append(edgekv.Runtime(small_model, **options))
        return Told(opened[-1], fed)

    yield open_told
    for runtime in opened:
        runtime.close()


def test_reading_and_generating(open_told, tmp_path):
    """Where nothing was evicted, the reply is that of a session that read the same tokens at once."""
    told = open_told(**ROOMY)

    def act(session):
        say(session, words(20))

    with told.again() as session:
        told.note(session, act)
    found = disturb(told, act, tmp_path / "a", 40)
    with told.runtime.session(log=True) as other:
        for tokens, reply in found.items():
            assert list(other.continue_from(tokens, max_tokens=4, sampling=GREEDY, allow_loops=True)) == reply
