"""Isolated runtimes: whatever happens to the worker is an error in the host, and nothing else differs.

Nothing here waits for ever: `workers` kills every worker of a test that takes too long, and that ends all waiting.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy as np
import pytest
import worker_scorers
from children import LIMIT_S, started
from command import words
from waiting import until

import edgekv
from edgekv.loop.loop_channel import Mailbox
from edgekv.loop.loop_messages import Close
from edgekv.planning import estimate
from edgekv.worker import worker_process

signals = pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
scripts = pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
measured = estimate.measured  # before tests run
KILLED, ABORTED = ("status 1;", "status 3;") if sys.platform == "win32" else ("signal 9 ", "signal 6 ")


@pytest.fixture(autouse=True)
def limit(workers):
    """Kills the workers of a test that takes too long."""
    timer = threading.Timer(LIMIT_S, lambda: [worker.kill() for worker in workers])
    timer.start()
    yield
    timer.cancel()
    timer.join(LIMIT_S)


@pytest.fixture(scope="module")
def open_runtime(tiny_model):
    """A function that opens a runtime over a tiny model; isolated, unless told otherwise."""
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    settings = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "isolated": True}
    return lambda **options: edgekv.Runtime(path, **(settings | options))


@pytest.fixture(scope="module")
def runtime(workers, open_runtime):
    with open_runtime() as rt:
        yield rt


# ---- the same as in one process ----


def test_what_comes_before_a_reply_is_known(runtime, local_runtime):
    assert runtime.reply_opening() == local_runtime.reply_opening() == "<|im_end|>\n<|im_start|>assistant\n"


def test_replies_and_their_figures_are_those_of_one_process(runtime, local_runtime, tmp_path):
    """Text, progress and stats, but for times and memory, of a conversation with every kind of reply."""
    book = tmp_path / "book.txt"
    book.write_text(words(200))

    def converse(rt):
        seen = []
        with rt.session(system="Be brief.") as session:
            sampling = edgekv.Sampling(temperature=1.0, seed=3)
            pieces = session.ask("What?", files=[book], max_tokens=40, sampling=sampling, progress=seen.append)
            seen += [list(pieces), session.stats]
            pieces = session.chat("Go on.", max_tokens=40)
            seen.append([next(pieces), next(pieces), session.n_past, session.n_cells])
            pieces.close()
            seen += [session.stats, session.n_past, session.kept_positions(1, 1).tolist(), session.budgets()]
            pieces = session.chat("And on.", max_tokens=40)
            next(pieces)
            session.cancel()
            seen += [list(pieces), session.stats]
        return [_timeless(item) for item in seen]

    assert runtime.options == dataclasses.replace(local_runtime.options, isolated=True)
    assert converse(runtime) == converse(local_runtime)


def _timeless(item):
    """Figures without what differs from run to run."""
    if not isinstance(item, edgekv.Stats):
        return item
    return {name: v for name, v in dataclasses.asdict(item).items() if not name.endswith(("_s", "_bytes"))}


def test_the_worker_does_not_run_ahead_of_the_host(session):
    pieces = session.generate(words(10), max_tokens=500)
    next(pieces)
    before = session.n_past
    assert [session.n_past for _ in range(50)] == [before] * 50
    next(pieces)
    assert session.n_past > before


def test_it_is_another_process(runtime, local_runtime):
    assert local_runtime.worker_pid is None
    assert runtime.worker_pid not in (None, os.getpid())
    with pytest.raises(edgekv.ConfigError, match="another process"):
        runtime.block_loop  # noqa: B018


NATIVE = """
import sys, edgekv, pathlib
with edgekv.Runtime(sys.argv[1], memory="4GiB", budget=64, isolated=True, threads=1) as rt:
    print(["libllama" in pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in ("self", rt.worker_pid)])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_host_loads_nothing_native(tiny_model):
    command = [sys.executable, "-W", "error", "-c", NATIVE, str(tiny_model(n_layer=2, n_ctx_train=2048))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert (result.stdout.strip(), result.stderr) == ("[False, True]", "")


def test_the_ceiling_is_for_the_worker_alone(runtime, tiny_model, monkeypatch):
    monkeypatch.setattr(estimate, "measured", measured)  # plans of tests do not
    held = np.ones(192 << 20, dtype=np.uint8)  # memory of the host
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    options = {"budget": 64, "threads": 1, "memory": "4GiB"}
    here, there = (edgekv.plan(path, isolated=isolated, **options) for isolated in (False, True))
    assert here.parts.python > held.nbytes > there.parts.python > 0
    assert here.parts.kv == there.parts.kv
    assert runtime.plan.parts.python < held.nbytes


# ---- errors ----


def test_errors_arrive_as_they_were_raised(session, open_runtime, tmp_path):
    def refused(isolated):
        with pytest.raises(edgekv.CeilingError, match=r"^memory=20.0 MiB does not hold .* raise the ceiling") as caught:
            open_runtime(memory="20MiB", isolated=isolated)
        return caught.value

    here, there = refused(False), refused(True)
    assert there.ceiling_bytes == here.ceiling_bytes
    assert there.required_bytes > there.ceiling_bytes
    with pytest.raises(edgekv.InputError, match=r"absent\.txt cannot be read"):
        list(session.ask("What?", files=[tmp_path / "absent.txt"]))
    assert session.stats.finish_reason == "failed"
    with pytest.raises(edgekv.ConfigError):
        session.kept_positions(99, 0)
    assert "".join(session.generate("a b c", max_tokens=3))


def test_relative_paths_are_those_of_the_host(session, tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_text(words(20))
    monkeypatch.chdir(tmp_path)
    list(session.ask("What?", files=["book.txt"], max_tokens=1))
    with pytest.raises(edgekv.InputError, match=r"^absent\.txt cannot be read"):
        list(session.ask("What?", files=["absent.txt"]))


def test_what_progress_raises_ends_the_reply_and_nothing_else(session):
    def progress(p):
        if p.tokens_done == 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(session.generate(words(100), progress=progress))
    assert (session.stats.finish_reason, session.stats.tokens_seen) == ("closed", session.n_past) == ("closed", 64)
    assert "".join(session.generate("a b c", max_tokens=3))


def test_an_interrupted_wait_leaves_the_session_usable(session, monkeypatch):
    """Ctrl-C while the worker is at a token: its answer comes later, and must not be taken for that of another."""
    pieces = session.generate(words(10), max_tokens=50)
    next(pieces)
    get = Mailbox.get

    def interrupted(mailbox):
        monkeypatch.setattr(Mailbox, "get", get)
        raise KeyboardInterrupt

    monkeypatch.setattr(Mailbox, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(pieces)
    assert session.stats.finish_reason == "closed"
    assert session.stats.tokens_seen == session.n_past
    assert len(session.kept_positions(0, 0)) == session.n_cells
    assert "".join(session.generate(" and", max_tokens=3))


@pytest.mark.each_by_day("is_sent", "then")
@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("then", ["close", "drop"])
def test_a_closed_session_is_forgotten_though_an_interrupt_comes(open_runtime, monkeypatch, is_sent, then):
    """Before the worker is told to, or after it was told and before the host notes that it has."""
    post, told = worker_process.Worker.post, []

    def noted(worker, message, client=None):
        if isinstance(message, Close):
            told.append(message.number)
            if len(told) == 1:
                if is_sent:
                    post(worker, message, client)
                raise KeyboardInterrupt
        return post(worker, message, client)

    monkeypatch.setattr(worker_process.Worker, "post", noted)
    monkeypatch.setattr(worker_process.Worker, "request", noted)
    with open_runtime() as rt:
        session = rt.session()
        list(session.generate("a b c", max_tokens=3))
        with pytest.raises(KeyboardInterrupt):
            session.close()
        if then == "close":
            session.close()
        else:
            del session
        with rt.session() as other:
            assert "".join(other.generate("a b c", max_tokens=3))
        assert told[0] == told[1] != told[2]
        assert len(told) == 3


def test_a_session_closed_in_the_midst_of_a_reply_makes_room_for_another(runtime):
    session = runtime.session()
    pieces = session.generate(words(10), max_tokens=50)
    next(pieces)
    session.close()
    with runtime.session() as other:
        assert other.n_past == 0
        said = other.generate("a b c", max_tokens=4)
        first = next(said)
        assert list(pieces) == []  # the old reply ends, and the new one does not notice
        assert first + "".join(said)
        assert other.stats.generated_tokens == 4


# ---- policies ----


def test_policies_travel(open_runtime):
    """By their spelling, as objects of edgekv, and as scorers that this process alone knows by name."""
    edgekv.policies.register("newest", worker_scorers.newest)
    try:
        with open_runtime(policy="newest", n_sink=0, recent=0, archive="off") as rt, rt.session() as session:
            list(session.generate(words(60), max_tokens=2))
            kept = session.kept_positions(1, 1)
            assert kept.tolist() == list(range(session.n_past - session.n_cells, session.n_past))
    finally:
        edgekv.policies.unregister("newest")
    policy = edgekv.policies.parse_policy("snapkv(window=16)+pyramid+ada")
    with open_runtime(policy=policy) as rt, rt.session() as session:
        list(session.generate(words(60), max_tokens=2))
        assert len({n for layer in session.budgets() for n in layer}) > 1


def test_scorers_that_cannot_travel_are_refused(open_runtime, monkeypatch):
    with pytest.raises(edgekv.ConfigError, match=r"cannot go to a worker process.*top level of a module"):
        open_runtime(policy=_registered(lambda positions: positions.astype(np.float32)))
    monkeypatch.setattr(worker_scorers.newest, "__qualname__", "moved")
    monkeypatch.setattr(worker_scorers, "moved", worker_scorers.newest, raising=False)  # here, but not in the file
    with pytest.raises(edgekv.ConfigError, match=r"cannot go to a worker process.*moved"):
        open_runtime(policy=_registered(worker_scorers.newest))


def _registered(scorer):
    """A policy that is an object; its name is forgotten again."""
    edgekv.policies.register("of-a-test", scorer)
    policy = edgekv.policies.parse_policy("of-a-test")
    edgekv.policies.unregister("of-a-test")
    return policy


def test_what_a_scorer_raises_ends_the_reply_and_what_it_crashes_ends_the_worker(open_runtime):
    for scorer, error, words_of_it in (
        (worker_scorers.failing, edgekv.PolicyError, "ZeroDivisionError: on purpose"),
        (worker_scorers.aborting, edgekv.WorkerError, ABORTED),
    ):
        with (
            open_runtime(policy=_registered(scorer)) as rt,
            rt.session() as session,
            pytest.raises(error, match=words_of_it),
        ):
            list(session.generate(words(100), max_tokens=2))


# ---- deaths ----


def answers(open_runtime):
    """Return whether a runtime opened now generates text."""
    with open_runtime() as rt, rt.session() as session:
        return bool("".join(session.generate("a b c", max_tokens=3)))


if sys.platform == "win32":  # a process is ended with a number as its status
    DEATHS = [(signal.SIGTERM, moment) for moment in ("reading", "generating", "waiting")]
    ENDED = "ended with status {:d};"
else:
    DEATHS = [(signal.SIGKILL, moment) for moment in ("reading", "generating", "waiting")]
    DEATHS += [(signal.SIGABRT, "generating"), (signal.SIGSEGV, "reading")]
    ENDED = "was ended by signal {:d} "


@pytest.mark.each_by_day("number", "moment")
@pytest.mark.parametrize(("number", "moment"), DEATHS, ids=lambda value: getattr(value, "name", value))
def test_a_worker_that_dies_is_an_error_in_every_call(open_runtime, number, moment):
    gone = pytest.raises(edgekv.WorkerError, match=f"{ENDED.format(number)}.*open another")
    with open_runtime() as rt, rt.session() as session:

        def kill(*_):
            os.kill(rt.worker_pid, number)

        with gone:
            if moment == "reading":
                list(session.generate(words(100), progress=kill))
            elif moment == "generating":
                list(map(kill, session.generate(words(10), max_tokens=500)))
            else:
                kill()
                while session.n_past == 0:
                    pass
        with gone:
            session.kept_positions(0, 0)
        with gone:
            list(session.generate("a b c"))
        assert session.stats.finish_reason == "failed"
        session.close()
        with gone:
            rt.session()
    if moment == "waiting":
        assert answers(open_runtime)


def test_a_worker_that_dies_while_it_loads_is_an_error(open_runtime, monkeypatch):
    start = worker_process._start

    def start_and_kill(*ends):
        worker = start(*ends)
        worker.kill()
        return worker

    monkeypatch.setattr(worker_process, "_start", start_and_kill)
    with pytest.raises(edgekv.WorkerError, match=KILLED):
        open_runtime()


@pytest.mark.each_by_day("generating", "known")
@signals
@pytest.mark.parametrize("generating", [True, False])
@pytest.mark.parametrize(("known", "how"), [(True, "was stopped by a signal"), (False, "gave no sign of life for 1 s")])
def test_a_worker_that_stands_still_is_an_error(open_runtime, monkeypatch, generating, known, how):
    """One that was stopped, and one that is silent for a reason that cannot be told."""
    beats, receive = [], Connection.recv_bytes
    with open_runtime() as rt, rt.session() as session:
        pieces = session.generate(words(10), max_tokens=500)
        next(pieces)
        if not known:  # patience is short from the next beat on: a worker that starts on a busy machine needs more
            monkeypatch.setattr(worker_process, "is_stopped", lambda pid: False)
            monkeypatch.setattr(worker_process, "SILENCE_S", 1.0)
            monkeypatch.setattr(Connection, "recv_bytes", lambda pulse: beats.append(receive(pulse)))
            until(lambda: len(beats) > 1 or rt._engine.channel._ended_because, "a beat")
        with suppress(ProcessLookupError):  # a busy machine may have ended one that was silent already
            os.kill(rt.worker_pid, signal.SIGSTOP)
        with pytest.raises(edgekv.WorkerError, match=f"{how}, and was ended"):
            next(pieces) if generating else session.n_past


@signals
def test_closing_ends_a_worker_that_stands_still(open_runtime, workers):
    with open_runtime() as rt:
        os.kill(rt.worker_pid, signal.SIGSTOP)
    assert workers[-1].poll() == -signal.SIGKILL


def test_a_python_that_does_not_start_is_an_error(open_runtime, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(edgekv.WorkerError, match="/nonexistent/python"):
        open_runtime()


@signals
def test_ctrl_c_is_left_to_the_host(runtime, session):
    assert os.getpgid(runtime.worker_pid) != os.getpgid(0)
    os.kill(runtime.worker_pid, signal.SIGINT)
    assert "".join(session.generate("a b c", max_tokens=3))


HOST = """
import sys, edgekv
with edgekv.Runtime(sys.argv[1], memory="4GiB", budget=64, block=32, threads=1, isolated=True,
                    allow_beyond_trained=True) as rt, rt.session() as session:
    for i, piece in enumerate(session.generate("word " * 100)):
        if i == 5:
            print(rt.worker_pid, flush=True)
"""


def test_the_worker_ends_when_the_host_is_killed(tiny_model):
    command = [sys.executable, "-c", HOST, str(tiny_model(n_layer=2, n_ctx_train=2048))]
    with started(command, stdout=subprocess.PIPE, text=True) as host:
        pid = int(host.stdout.readline())
        host.kill()
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if not _runs(pid):
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    pytest.fail("the worker outlived its host")


def _runs(pid):
    if sys.platform == "win32":
        import psutil

        return psutil.pid_exists(pid)
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


# ---- threads ----


@pytest.mark.parametrize("isolated", [False, True])
def test_two_sessions_in_two_threads(request, open_runtime, isolated):
    """Each says what it says alone."""
    sampling = edgekv.Sampling(temperature=1.0, seed=1)

    def reply(rt, text):
        with rt.session() as session:
            return list(session.generate(text, max_tokens=60, sampling=sampling))

    texts = [words(80), words(50)]
    together: list = [None, None]
    with open_runtime(isolated=isolated) as other:
        runtimes = [request.getfixturevalue("runtime" if isolated else "local_runtime"), other]
        alone = [reply(rt, text) for rt, text in zip(runtimes, texts, strict=True)]

        def run(i):
            together[i] = reply(runtimes[i], texts[i])

        threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
    assert together == alone


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["runtime", "local_runtime"])
def test_cancels_from_another_thread_at_any_moment(request, kind):
    """Every reply ends, and the session answers after all of them."""
    over = threading.Event()
    reasons = []
    with request.getfixturevalue(kind).session() as session:

        def storm():
            while not over.wait(0.003):
                session.cancel()

        thread = threading.Thread(target=storm, daemon=True)
        thread.start()
        for i in range(40):
            list(session.generate(words(1 + i), max_tokens=200))
            reasons.append(session.stats.finish_reason)
            if session.n_past > 1000:
                break
        over.set()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert set(reasons) <= {"cancelled", "length", "end", "loop"}
        list(session.generate("a b c", max_tokens=3))
        assert session.stats.finish_reason in ("length", "end")


# ---- programs without an interpreter ----

FROZEN = """#!{python}
import sys
sys.frozen, sys.executable = True, __file__  # as PyInstaller's programs have it; this file is a program
{prepare}
import edgekv
with edgekv.Runtime(sys.argv[1], memory="4GiB", budget=64, isolated=True, threads=1) as rt, rt.session() as session:
    print("".join(session.generate("a b c", max_tokens=3)) == sys.argv[2], len(sys.argv))
"""
PREPARE = "from edgekv.worker.frozen import serve_if_worker; serve_if_worker()"


def run_frozen(folder, prepare, *arguments):
    program = folder / "program"
    program.write_text(FROZEN.format(python=sys.executable, prepare=prepare))
    program.chmod(0o700)
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, check=False)


@scripts
def test_a_frozen_program_is_its_own_worker(runtime, tiny_model, tmp_path):
    with runtime.session() as session:
        said = "".join(session.generate("a b c", max_tokens=3))
    done = run_frozen(tmp_path, PREPARE, tiny_model(n_layer=2, n_ctx_train=2048), said)
    assert (done.stdout, done.stderr) == ("True 3\n", "")


@pytest.mark.nightly
@scripts
def test_a_frozen_program_that_is_not_prepared_is_not_started_again(tiny_model, tmp_path):
    done = run_frozen(tmp_path, "", tiny_model(n_layer=2, n_ctx_train=2048), "")
    assert done.returncode == 1
    assert "ConfigError: isolated=True starts this frozen program once more" in done.stderr
