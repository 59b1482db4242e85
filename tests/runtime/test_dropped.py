"""Runtimes that nobody closes, and those that fail half-way: whatever they held is freed."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import contextmanager

import pytest
from children import LIMIT_S

import edgekv
from edgekv.binding.cache import Cache
from edgekv.binding.model import Context, Model
from edgekv.cells import loaded_model
from edgekv.conversations import local_engine
from edgekv.conversations.swap import SwapSpace
from edgekv.memory import process
from edgekv.memory.process import held
from edgekv.testing.models.families import make_family
from edgekv.worker import worker_process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals, and reads /proc")

DROPPED = "was dropped without being closed"
MIB = 1 << 20


# ---- a runtime that fails when some of it is there ----


class FaultError(Exception):
    """Raised on purpose."""


def fail(*_, **__):
    raise FaultError


@pytest.fixture
def left(monkeypatch):
    """A list of the models, contexts, caches and swap spaces that were made since and are still open."""
    open_now = []

    def watch(kind):
        make, close = kind.__init__, kind.close

        def made(self, *arguments, **options):
            make(self, *arguments, **options)
            open_now.append(id(self))  # not the object, which knows others

        def closed(self):
            close(self)
            open_now[:] = [thing for thing in open_now if thing != id(self)]

        monkeypatch.setattr(kind, "__init__", made)
        monkeypatch.setattr(kind, "close", closed)

    for kind in (Model, Context, Cache, SwapSpace):
        watch(kind)
    return open_now


STEPS = [(local_engine, name) for name in ("_swap_space", "LoadedModel", "CacheSlots")]
STEPS += [(process, "hold")]
STEPS += [(loaded_model, name) for name in ("Model", "open_cache", "BlockLoop")]


@pytest.mark.parametrize(("module", "step"), STEPS, ids=[step for _, step in STEPS])
def test_what_a_failing_runtime_made_is_freed(open_runtime, monkeypatch, left, module, step):
    before = held()
    monkeypatch.setattr(module, step, fail)
    with pytest.raises(FaultError):
        open_runtime()
    assert left == []
    assert held() == before


@pytest.mark.parametrize(("name", "reason"), [("gemma3", "sliding window"), ("mamba2", "")])
def test_keys_that_cannot_be_moved_are_told_by_the_plan(tmp_path, monkeypatch, name, reason):
    model = make_family(tmp_path / "model.gguf", name)
    if not reason:  # it has no keys
        edgekv.plan(model, reposition="always", budget=64, memory="4GiB")
        return
    monkeypatch.setattr(loaded_model, "Model", fail)
    for ask in (edgekv.plan, edgekv.Runtime):
        with pytest.raises(edgekv.UnsupportedModelError, match=reason):
            ask(model, reposition="always", budget=64, memory="4GiB")
    edgekv.plan(model, reposition="auto", budget=64, memory="4GiB")


# ---- runtimes that were dropped ----


@contextmanager
def dropping():
    """Everything dropped in this block is freed at its end, with a warning."""
    with pytest.warns(ResourceWarning, match=DROPPED):  # noqa: PT031
        yield
        gc.collect()


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
def test_a_dropped_runtime_is_freed(open_runtime, workers, left, isolated):
    before = held()
    runtime = open_runtime(isolated=isolated)
    with runtime.session(system="Be brief.", history=True) as session:
        list(session.chat("word " * 100, max_tokens=3))
    session = None
    with dropping():
        runtime = None
    assert runtime is session is None
    assert left == []
    assert held() == before
    assert all(worker.poll() is not None for worker in workers)


def test_a_session_keeps_its_runtime_as_does_a_reply(open_runtime, left):
    runtime = open_runtime()
    session = runtime.session()
    runtime = None
    gc.collect()
    assert len(list(session.chat("a b c", max_tokens=4, allow_loops=True))) > 0
    pieces = session.chat("d e f", max_tokens=40, allow_loops=True)
    next(pieces)
    session = None
    gc.collect()
    assert isinstance(next(pieces), str)
    assert left != []
    with dropping():
        pieces = None
    assert runtime is session is pieces is None
    assert left == []


def test_what_a_session_is_known_to_is_no_reason_to_keep_it(open_runtime, left):
    """Such as a function that watches what is fed, and has the session itself."""
    runtime = open_runtime()
    session = runtime.session()
    runtime.block_loop.watch = lambda tokens, session=session: None
    with dropping():
        runtime = session = None
    assert runtime is session is None
    assert left == []


def test_closing_says_nothing_afterwards(open_runtime, recwarn):
    with open_runtime() as runtime:
        runtime.session()
    runtime = None
    gc.collect()
    assert runtime is None
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]


def test_a_worker_may_be_dropped_by_the_thread_that_watches_it(open_runtime, workers, monkeypatch):
    kept = [open_runtime(isolated=True)]
    watcher = kept[0]._engine.channel._watcher
    gone = weakref.ref(kept[0]._engine)
    raised = []

    def drop(_pid):
        assert threading.current_thread() is watcher
        try:
            kept.clear()
        except BaseException as error:
            raised.append(error)
        return True

    monkeypatch.setattr(worker_process, "is_stopped", drop)
    with dropping():
        os.kill(kept[0].worker_pid, signal.SIGSTOP)  # makes the watcher ask
        watcher.join(LIMIT_S)
    assert not watcher.is_alive()
    assert raised == []
    assert gone() is None
    assert workers[-1].poll() is not None


def test_a_refusal_names_runtimes_that_are_open(open_runtime, tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64)
    with pytest.raises(edgekv.CeilingError) as alone:
        edgekv.plan(path, memory="9MiB")
    assert "open in this process" not in str(alone.value)
    with open_runtime() as one:
        n_bytes = one.plan.peak_bytes - one.plan.parts.python
        assert held() == (1, n_bytes)
        with pytest.raises(edgekv.CeilingError) as beside:
            edgekv.plan(path, memory="9MiB")
        told = f"1 other runtime is open in this process and holds about {n_bytes // MIB} MiB: close it, or"
        assert told in str(beside.value)
        with (
            open_runtime(),
            pytest.raises(edgekv.CeilingError, match="2 other runtimes are open in this process and hold"),
        ):
            edgekv.plan(path, memory="9MiB")
    assert held() == (0, 0)


def test_runtimes_that_nobody_has_are_no_reason_to_refuse(open_runtime, tiny_model):
    """A runtime in a circle of the program's own is garbage that has to be collected."""
    gc.collect()
    gc.disable()
    try:
        circle = [open_runtime()]
        circle.append(circle)
        circle = None
        assert held()[0] == 1
        with pytest.warns(ResourceWarning, match=DROPPED):
            edgekv.plan(tiny_model(n_layer=2), memory="4GiB", budget=64)
    finally:
        gc.enable()
    assert circle is None
    assert held() == (0, 0)


def test_a_dropped_runtime_is_freed_at_once_with_its_sessions(open_runtime):
    gc.collect()
    gc.disable()
    try:
        runtime = open_runtime()
        "".join(runtime.session(history=True).generate("Hi", max_tokens=2))
        with pytest.warns(ResourceWarning, match=DROPPED):
            runtime = None
    finally:
        gc.enable()
    assert runtime is None
    assert held() == (0, 0)


MANY = """
import gc, sys, warnings
import edgekv
from edgekv.memory.process import resident_bytes, return_freed_memory
warnings.simplefilter("ignore", ResourceWarning)
held = []
for _ in range(int(sys.argv[3])):
    runtime = edgekv.Runtime(sys.argv[1], isolated=sys.argv[2] == "isolated", memory="4GiB", budget=64, threads=1)
    session = runtime.session()
    list(session.chat("a b c", max_tokens=2))
    del runtime, session
    gc.collect()
    return_freed_memory()
    held.append(resident_bytes())
workers = open(f"/proc/self/task/{__import__('os').getpid()}/children").read().split()
print(len(workers), held[1], held[-1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the children of a process")
@pytest.mark.parametrize(("where", "n"), [("here", 3), pytest.param("isolated", 3, marks=pytest.mark.nightly)])
def test_many_runtimes_are_as_one(tiny_model, where, n):
    model = tiny_model(n_layer=4, n_embd=512, n_ff=2048)
    assert model.stat().st_size > 20 * MIB
    command = [sys.executable, "-c", MANY, model, where, str(n)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    n_workers, after_two, after_all = map(int, ended.stdout.split())
    assert n_workers == 0
    assert after_all - after_two < 8 * MIB  # one more that is kept would be 20 MiB


AT_EXIT = """
import sys
import edgekv
runtime = edgekv.Runtime(sys.argv[1], isolated=sys.argv[2] == "isolated", memory="4GiB", budget=64, threads=1)
session = runtime.session()
pieces = session.chat("a b c")
next(pieces)
print("end")
"""


@pytest.mark.parametrize("where", ["here", "isolated"])
def test_a_program_that_ends_with_an_open_runtime_says_nothing(tiny_model, where):
    command = [sys.executable, "-X", "dev", "-c", AT_EXIT, tiny_model(n_layer=2), where]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (ended.returncode, ended.stdout) == (0, "end\n")
    assert not re.search("Resource|runtime|Traceback|worker", ended.stderr), ended.stderr


FORK = """
import gc, os, sys
import edgekv
runtime = edgekv.Runtime(sys.argv[1], isolated=True, memory="4GiB", budget=64, threads=1)
child = os.fork()
if child == 0:
    del runtime
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len(runtime.tokenize("a b c")) > 0)
runtime.close()
"""


def test_a_fork_frees_nothing_of_its_parents(tiny_model):
    command = [sys.executable, "-c", FORK, tiny_model(n_layer=2)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.stdout == "True\n", ended.stderr
