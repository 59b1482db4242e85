"""Imports and warm-ups of a process are done once, whichever threads are the first to need them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from arrivals import Arrivals

from edgekv import warmup
from edgekv.binding import ggml_devices

LIMIT_S = 100

# The bindings open their library while they are imported. There one thread is held, and says so.
HELD = """
import ctypes, os, sys, threading, types
from arrivals import Arrivals
from edgekv.binding import library

sys.modules["diskcache"] = types.ModuleType("diskcache")  # the high-level part needs it, and edgekv does not install it
library.load()
held, release, results = threading.Event(), threading.Event(), {}
open_library = ctypes.CDLL

def open_and_hold(*arguments, **options):
    if threading.current_thread().name == "held":
        held.set()
        assert release.wait(100)
    return open_library(*arguments, **options)

ctypes.CDLL = open_and_hold

def start(name, work):
    def run():
        try:
            results[name] = work()
        except BaseException as error:
            results[name] = error
        came.set()
    threading.Thread(target=run, name=name).start()

def low_level():
    found = library.bindings()
    assert found.llama_model_load_from_file, "it is not all there"
    return found

def whole():
    import llama_cpp
    assert llama_cpp.Llama and llama_cpp.llama_model_load_from_file, "it is not all there"
    return sys.modules["llama_cpp.llama_cpp"]

came = threading.Event()
"""

OF_EDGEKV = """
library._importing = Arrivals(threading.Lock())
came = library._importing.arrived
start("held", low_level)
assert held.wait(100)
start("other", low_level)
assert came.wait(100)
release.set()
"""

OF_THE_PROGRAM = """
start("held", low_level)
assert held.wait(100)
start("other", whole)
assert came.wait(100)
release.set()
"""

BEFORE = """
os.environ["LLAMA_CPP_LIB_PATH"] = str(library.library_path().parent)
start("held", whole)
assert held.wait(100)
import_module = library.importlib.import_module

def import_and_tell(name):
    came.set()
    return import_module(name)

library.importlib.import_module = import_and_tell
start("other", low_level)
assert came.wait(100)
release.set()
"""

RESULTS = """
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join(100)
assert set(results.values()) == {low_level()} == {whole()}, results
assert str(low_level()._base_path) == str(library.library_path().parent)
print("LLAMA_CPP_LIB_PATH" in os.environ)
"""


@pytest.mark.parametrize(
    ("meanwhile", "is_named"),
    [(OF_EDGEKV, False), (OF_THE_PROGRAM, False), (BEFORE, True)],
    ids=["another runtime", "import llama_cpp", "within import llama_cpp"],
)
def test_the_bindings_are_imported_once(meanwhile, is_named):
    """One thread is held in the midst of importing them, and another needs them, too."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if name != "LLAMA_CPP_LIB_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", HELD + meanwhile + RESULTS],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment | {"PYTHONPATH": paths},
    )
    assert (done.returncode, done.stdout) == (0, f"{is_named}\n"), done.stderr


def second_comes(monkeypatch, lock_of, first, second):
    """Call `first(at_work, release)` in a thread, and `second()` in another that comes while the first is at work.

    lock_of: the module and the name of the lock that the second waits for
    """
    module, name = lock_of
    at_work, release = threading.Event(), threading.Event()
    lock = Arrivals(getattr(module, name, threading.RLock()))
    monkeypatch.setattr(module, name, lock, raising=False)

    def come():
        second()
        lock.arrived.set()

    threads = [threading.Thread(target=first, args=(at_work, release)), threading.Thread(target=come)]
    for thread, came in zip(threads, (at_work, lock.arrived), strict=True):
        thread.start()
        assert came.wait(LIMIT_S)
    release.set()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_a_plan_waits_for_the_warmup_of_another_thread(monkeypatch):
    """The plan counts the memory that the warm-up leaves."""
    done = []
    monkeypatch.setattr(warmup, "_waiting", [])

    def warm_up(at_work, release):
        def work():
            at_work.set()
            assert release.wait(LIMIT_S)
            warmup.warm_up()  # work may make a plan itself
            done.append("work")

        warmup.register_warmup(work)
        warmup.warm_up()

    def plan():
        warmup.warm_up()
        done.append("plan")

    second_comes(monkeypatch, (warmup, "_warming"), warm_up, plan)
    assert done == ["work", "plan"]


class Servers(set):
    """The servers whose devices are listed. Who asks first is held, and then told what was true before."""

    at_work = None

    def __contains__(self, address):
        found = super().__contains__(address)
        if self.at_work is not None:
            at_work, self.at_work = self.at_work, None
            at_work.set()
            assert self.release.wait(LIMIT_S)
        return found


class Ggml:
    """ggml's calls about a server without devices."""

    def __init__(self):
        self.registered = []
        self.ggml_backend_rpc_add_server = lambda address: address
        self.ggml_backend_reg_dev_count = lambda server: 0
        self.ggml_backend_register = self.registered.append


def test_the_devices_of_a_server_are_listed_once(monkeypatch):
    servers, ggml = Servers(), Ggml()
    monkeypatch.setattr(ggml_devices, "_added", servers)
    monkeypatch.setattr(ggml_devices, "functions", lambda: ggml)

    def add_server(at_work, release):
        servers.at_work, servers.release = at_work, release
        ggml_devices.add_server("127.0.0.1:1")

    second_comes(monkeypatch, (ggml_devices, "_adding"), add_server, lambda: ggml_devices.add_server("127.0.0.1:1"))
    assert ggml.registered == [b"127.0.0.1:1"]
