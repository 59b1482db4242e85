"""Interrupts of any kind at any line: cells, log and turns agree at the next use. Nothing is lost or fed twice."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from functools import partial
from pathlib import Path

import pytest
from diagonals import HERE_BY_DAY
from small import words

import edgekv
from edgekv.binding import library
from edgekv.cells.block_loop import BlockLoop
from edgekv.generation.sampler import GREEDY
from edgekv.prompt import text
from edgekv.prompt.turns import Turns

FOLDER = str(Path(edgekv.__file__).parent) + os.sep
SETTINGS = {"memory": "4GiB", "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16, "archive": "off"}
ROOMY = SETTINGS | {"budget": 400, "policy": "keydiff"}
TIGHT = SETTINGS | {"budget": 80}
COVERED = set()  # lines at which an earlier test has raised
ERRORS = itertools.cycle([KeyboardInterrupt, MemoryError])
QUESTION = "And then?"


RAISED = []  # points, one for each time

# An error on the line of a `with` statement, as it is left, leaves its file to the garbage collector, which closes it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(autouse=True)
def collected():
    """Collect garbage before the next test, in which these warnings are errors."""
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def counted():
    """Says with -s how many points there were."""
    yield
    print(
        f"\nraised at {len(RAISED)} points, {len(set(RAISED))} distinct, in {len({line for line, _ in RAISED})} lines"
    )


def lines_of(work):
    """The lines of edgekv that a piece of work passes, in their order."""
    passed = []
    run_at(work, -1, None, passed)
    return passed


def run_at(work, k, error, passed=None):
    """Run a piece of work, and raise an error at the k-th line of edgekv that it passes; returns whether it came out.

    One that is raised in a finalizer does not.
    """
    n = 0

    def local(frame, event, _):
        nonlocal n
        if event == "line":
            if passed is not None:
                passed.append((frame.f_code.co_filename, frame.f_lineno))
            n += 1
            if n == k + 1:
                RAISED.append(((frame.f_code.co_filename, frame.f_lineno), k))
                raise error
        return local

    def trace(frame, _event, _):
        return local if frame.f_code.co_filename.startswith(FOLDER) else None

    before, hook = sys.gettrace(), sys.unraisablehook
    sys.unraisablehook = lambda _: None
    sys.settrace(trace)
    try:
        work()
    except (KeyboardInterrupt, MemoryError, edgekv.EdgeKVError):  # a lack of memory may become an EdgeKVError
        return True
    finally:
        sys.settrace(before)
        sys.unraisablehook = hook
    return False


def points(passed, step):
    """Every other line at which no earlier test has raised, the first time or the last, and every step-th one."""
    first = {line: k for k, line in reversed(list(enumerate(passed)))}
    last = {line: k for k, line in enumerate(passed)}
    new = [line for line in first if line not in COVERED][::2]
    COVERED.update(new)
    ends = [*(first[line] for line in new[::2]), *(last[line] for line in new[1::2])]
    return sorted({*ends, *range(0, len(passed), step)})


def state_of(session):
    """Return the state of a conversation of this process beside its cells: turns and pending token."""
    state = session._conversation.state
    return state.turns, state.pending


def log_of(session):
    log = session._conversation.state.history.log
    return log.read(0, len(log)).tolist()


def say(session, question=QUESTION, n=3, **options):
    return list(session.chat(question, max_tokens=n, sampling=GREEDY, allow_loops=True, **options))


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
        with runtime.session(system, history=True) as session:
            for question in ("What?", words(6)):
                self.note(session, partial(say, question=question))
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
        session = self.runtime.session(history=True, start=self.start)
        assert session.n_past == self.before[0]  # it has begun
        self.fed.clear()
        self.fed.update(enumerate(self.tokens[: self.before[0]]))
        return session

    def turns_at(self, n):
        return next(state for position, state in reversed(self.timeline) if position <= n)


def check(told, session, replies, path):
    """All of a session agrees, and it goes on as its tokens say; so does a saved one. Returns what it read and said."""
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
    with told.runtime.load_session(path, instead_of=session) as loaded:
        assert (loaded.n_past, log_of(loaded), state_of(loaded)) == (n, log, (turns, pending))
        if key not in replies:
            assert say(loaded) == reply
    assert replies.setdefault(key, reply) == reply
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
    assert n_raised > 0
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


@pytest.fixture(autouse=True)
def no_flushing(monkeypatch):
    """Thousands of files are saved here, for which no disk need be waited for."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def as_at_once(told, found):
    """Check that replies, with nothing evicted, are those of a session that read the same tokens at once."""
    with told.runtime.session(history=True) as other:
        for tokens, reply in found.items():
            assert list(other.continue_from(tokens, max_tokens=3, sampling=GREEDY, allow_loops=True)) == reply


def test_reading_and_generating(open_told, tmp_path):
    told = open_told(**ROOMY)

    def act(session):
        say(session, words(20))

    with told.again() as session:
        told.note(session, act)
    as_at_once(told, disturb(told, act, tmp_path / "a", 1500))


@pytest.mark.parametrize(
    "policy",
    ["keydiff", *(pytest.param(policy, marks=pytest.mark.nightly) for policy in ("snapkv", "h2o"))],
)
def test_with_probes_and_drafts(open_told, tmp_path, monkeypatch, policy):
    """Cells are evicted, with a question in mind and without."""
    monkeypatch.setattr("edgekv.cells.speculation.SpeculationGate.allows_draft", lambda self, draft: True)
    told = open_told(**TIGHT, policy=policy, prompt_lookup="on" if policy in ("keydiff", "h2o") else "off")

    def act(session):
        say(session, words(40) + " a b a b a b a b a b", n=9, focus=policy in ("keydiff", "snapkv"))

    with told.again() as session:
        told.note(session, act)
        assert session.stats.evictions > 0
    disturb(told, act, tmp_path / "a", 1500)


def test_a_history(open_told, tmp_path):
    told = open_told(**ROOMY)
    with told.again() as session:
        turns = [{"role": turn.role, "content": "".join(session.text(turn))} for turn in session.turns()]
    history = [*turns, {"role": "user", "content": words(20)}]

    def act(session):
        list(session.continue_from(history, max_tokens=3, sampling=GREEDY, allow_loops=True))

    with told.again() as session:
        told.note(session, act)
    as_at_once(told, disturb(told, act, tmp_path / "a", 1500))


def test_a_shared_beginning(open_told, tmp_path):
    """A session goes to it from tokens of its own, and has the one or the other."""
    told = open_told(**ROOMY)
    system, text = {"role": "system", "content": "Be brief."}, words(40, "book")

    def ask(session, question="Who?"):
        history = [system, {"role": "user", "content": f"{text} {question}"}]
        return list(session.continue_from(history, shared=100, max_tokens=3, sampling=GREEDY, allow_loops=True))

    with told.runtime.session("Be brief.", history=True) as other:
        ask(other, "What?")
    with told.again() as session:
        before, pending = log_of(session), state_of(session)[1]
        expected = ask(session)
        assert session.stats.reused_tokens > 64
        after, n_prompt = log_of(session), session.stats.reused_tokens + session.stats.prompt_tokens
    with told.again() as session:
        passed = lines_of(lambda: ask(session))
    n_raised = 0
    for k in points(passed, 400):
        with told.again() as session:
            n_raised += run_at(lambda session=session: ask(session), k, next(ERRORS))
            session.save(tmp_path / "a")  # the first use after it
            n, log = session.n_past, log_of(session)
            assert len(log) == n
            assert log in (before, [*before, *pending][:n], after[:n], before[:n]), passed[k]
            if log != before[:n] and n < n_prompt:
                assert state_of(session) == ("user" if n > 20 else "opening", ()), passed[k]
            assert ask(session) == expected, passed[k]
            assert log_of(session) == after
    assert n_raised > 0


@pytest.mark.parametrize("checkpoints", [True, False])
def test_going_back(open_told, tmp_path, checkpoints):
    """The session stands where it stood, or anywhere from the checkpoint on."""
    told = open_told(**ROOMY)

    def act(session):
        if not checkpoints:
            session._conversation.state.history.checkpoints.close()
        session.rewind(told.before[0] - 3)

    as_at_once(told, disturb(told, act, tmp_path / "a", 1500))


def test_saving_and_snapshots(open_told, tmp_path):
    told = open_told(**ROOMY)
    with told.runtime.session("Be brief.", history=True) as session:
        say(session, "What?")
        earlier = session.snapshot()

    def act(session):
        session.save(tmp_path / "b")
        snapshot = session.snapshot()
        session.restore(earlier)
        session.restore(snapshot)

    as_at_once(told, disturb(told, act, tmp_path / "a", 1500))


@pytest.mark.parametrize("rest", [True, False])
def test_while_others_take_the_cells(open_told, tmp_path, rest):
    """A session rests, in memory or as a checkpoint, and has its cells back."""
    told = open_told(**ROOMY)

    def act(session):
        if not rest:
            session._conversation.state.history.checkpoints.close()
        with told.runtime.session() as other:
            list(other.generate("a", max_tokens=1))
            session.kept_positions(0, 0)

    def further(_session):
        told.fed.clear()
        told.fed.update(enumerate(told.tokens))

    as_at_once(told, disturb(told, act, tmp_path / "a", 800, further))


@pytest.mark.parametrize("own_cells", [True, False])
def test_loading(open_told, tmp_path, own_cells):
    """The session in whose place another one is loaded is as before, or says that it is gone."""
    told, path = open_told(**ROOMY), tmp_path / "other"
    with told.again() as session:
        say(session, words(5))
        session.save(path)

    def act(session):
        told.runtime.load_session(path, instead_of=session if own_cells else None).close()

    with told.again() as session:
        passed = lines_of(lambda: act(session))
    replies, n_lost = {}, 0
    for k in points(passed, 800):
        with told.again() as session:
            run_at(lambda: act(session), k, next(ERRORS))
            try:
                check(told, session, replies, tmp_path / "a")
            except edgekv.SessionError:
                assert own_cells
                n_lost += 1
        if k % 10 == 0:
            with told.runtime.load_session(path) as session:
                assert session.n_past > told.before[0]
    assert len(replies) == 1
    assert n_lost < len(passed)


# ---- one moment each ----


@pytest.fixture(params=HERE_BY_DAY, ids=["here", "isolated"])
def roomy(request, small_model, talkative):
    with edgekv.Runtime(small_model, **ROOMY, isolated=request.param) as runtime:
        yield runtime


@pytest.fixture
def roomy_here(small_model, talkative):
    with edgekv.Runtime(small_model, **ROOMY) as runtime:
        yield runtime


def interrupt_after(monkeypatch, name, i, error=KeyboardInterrupt):
    """Raise an error when the library has returned from its i-th call of a function, as Ctrl-C does."""
    call, n = library.call, itertools.count()

    def interrupted(called, *arguments):
        call(called, *arguments)
        if called == name and next(n) == i:
            raise error

    monkeypatch.setattr(library, "call", interrupted)


@pytest.mark.parametrize("i", range(6))
def test_an_interrupt_after_a_feed(roomy_here, monkeypatch, tmp_path, i):
    """The interrupt comes between the feed and its note. Nothing is fed twice, and the saved file is sound."""
    with roomy_here.session(history=True) as session:
        say(session, "What?")
        with monkeypatch.context() as patch:
            interrupt_after(patch, "edgekv_cache_feed", i)
            with pytest.raises(KeyboardInterrupt):
                say(session, words(20), n=20)
        assert session._call("n_logged") >= session.n_past
        assert len(log_of(session)) == session.n_past
        log = log_of(session)
        session.save(tmp_path / "a")
        reply = say(session)
        assert log_of(session)[: len(log)] == log
        with roomy_here.load_session(tmp_path / "a") as loaded:
            assert log_of(loaded) == log
            assert say(loaded) == reply


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(
    "name", ["edgekv_cache_restore_numbers", "edgekv_cache_restore_rows", "edgekv_cache_feed", "edgekv_cache_drop"]
)
def test_an_interrupt_while_going_back(roomy_here, monkeypatch, name, error):
    """The session stands at the checkpoint, where reading came to, or where later cells were dropped."""
    if name != "edgekv_cache_drop":
        monkeypatch.setattr(BlockLoop, "earliest", property(lambda self: self.cache.n_past))
    with roomy_here.session(history=True) as session, roomy_here.session(history=True) as other:
        for it in (session, other):
            say(it, "What?")
            say(it, words(20))
        session.kept_positions(0, 0)  # it has the cells again
        n = session.n_past
        with monkeypatch.context() as patch:
            interrupt_after(patch, name, 0, error)
            with pytest.raises(error):
                session.rewind(n - 1)
        assert 0 < session.n_past == len(log_of(session)) < n
        other.rewind(session.n_past)
        assert log_of(session) == log_of(other)
        assert say(session) == say(other)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("i", [0, 1])
def test_an_interrupt_while_loading(roomy_here, monkeypatch, tmp_path, error, i):
    """A session whose cells are lost says so; it does not go on empty."""
    with roomy_here.session(history=True) as saved:
        say(saved, words(30))
        saved.save(tmp_path / "a")
        reply = say(saved)
    with roomy_here.session(history=True) as session:
        say(session)
        with monkeypatch.context() as patch:
            interrupt_after(patch, ("edgekv_cache_restore_numbers", "edgekv_cache_restore_rows")[i], 0, error)
            with pytest.raises(error):
                roomy_here.load_session(tmp_path / "a", instead_of=session)
        assert session.closed
        with pytest.raises(edgekv.SessionError):
            say(session)
    with roomy_here.load_session(tmp_path / "a") as loaded:
        assert say(loaded) == reply


def test_a_prompt_that_is_not_read_changes_no_turn(roomy_here, monkeypatch, tmp_path):
    """Such as one with a file that vanishes after its tokens were counted."""
    book, read_text = tmp_path / "book.txt", text.read_text
    book.write_text("a b c")
    for told in (False, True):
        with (
            roomy_here.session("Be brief.", history=True) as session,
            roomy_here.session("Be brief.", history=True) as other,
        ):
            for it in (session, other):
                if told:
                    say(it, "What?")
            n, times = session.n_past, itertools.count()
            with monkeypatch.context() as patch:
                patch.setattr(
                    text, "read_text", lambda path, times=times: read_text(path if not next(times) else "gone")
                )
                with pytest.raises(edgekv.InputError, match="gone"):
                    say(session, files=[book])
            assert session.n_past == n
            assert say(session) == say(other)
            assert "".join(session.text()) == "".join(other.text())


@pytest.mark.parametrize("log", [False, True])
def test_a_system_message_that_was_cut_is_read_again(roomy, log):
    """A cancel while it is read, and then another one."""
    system = words(50)
    with roomy.session(system, history=log) as session, roomy.session(system) as other:
        for n in (32, 64):
            say(session, progress=lambda progress, n=n: session.cancel() if progress.tokens_done >= n else None)
            assert session.stats.finish_reason == "cancelled"
            assert session.n_past == n
        said = say(session)
        assert session.n_past == session.stats.prompt_tokens + 2
        assert said == say(other)
        assert (session.n_past, session.kept_positions(1, 1).tolist()) == (
            other.n_past,
            other.kept_positions(1, 1).tolist(),
        )
        assert say(session) == say(other)
        if log:
            session.rewind(20)
            assert say(session) == said


def test_an_interrupt_of_the_host_of_a_worker(small_model):
    """At lines of edgekv.worker that a reply passes here: the next use works, or says that the worker is gone."""
    options = ROOMY | {"isolated": True}
    runtime, n_lost, n_checked = edgekv.Runtime(small_model, **options), 0, 0
    with runtime.session(history=True) as session:
        passed = lines_of(lambda: say(session, "a"))
    first = {line: k for k, line in reversed(list(enumerate(passed))) if os.sep + "worker" + os.sep in line[0]}
    for k in [*first.values()][::24]:
        session = runtime.session(history=True)
        run_at(partial(say, session, "a"), k, next(ERRORS))
        try:
            say(session, "b")
            assert session._call("n_logged") - session.n_past in (0, 1)
            session.close()
            n_checked += 1
        except edgekv.WorkerError:
            n_lost += 1
            runtime.close()
            runtime = edgekv.Runtime(small_model, **options)
    runtime.close()
    assert n_checked > n_lost
