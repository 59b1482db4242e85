"""Ctrl-C while native code runs: nothing is lost, nothing is printed, and it ends what it came into."""

from __future__ import annotations

import signal
import threading

import pytest
from children import LIMIT_S

from edgekv.binding.interrupt import held_back
from edgekv.binding.model import Model
from edgekv.memory import process
from edgekv.options import Options


@pytest.fixture(autouse=True)
def usual_handler():
    """As in a program that nobody started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_it_is_raised_when_all_is_over():
    steps = []

    def work():
        with held_back() as came:
            steps.append(came())
            signal.raise_signal(signal.SIGINT)
            steps.append(came())

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [False, True]


def test_it_matters_more_than_what_it_led_to():
    def fail(interrupted):
        with held_back():
            if interrupted:
                signal.raise_signal(signal.SIGINT)
            raise ValueError("given up")

    with pytest.raises(KeyboardInterrupt):
        fail(interrupted=True)
    with pytest.raises(ValueError, match="given up"):
        fail(interrupted=False)


def test_other_threads_and_other_handlers_are_left_alone():
    def hold():
        with held_back() as came:
            found.append(came())

    found = []
    thread = threading.Thread(target=hold)
    thread.start()
    thread.join(LIMIT_S)
    assert found == [False]
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(True))
    with held_back() as came:
        signal.raise_signal(signal.SIGINT)
        assert not came()
    assert heard == [True]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_model_that_loads_is_given_up(tiny_model, monkeypatch):
    """The interrupt comes inside a callback of the library, where an exception would go nowhere."""
    path = tiny_model()
    calls = []

    def interrupted():
        calls.append(True)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(process, "return_freed_memory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Model(path, Options(mmap=False))
    assert calls == [True]
    monkeypatch.undo()
    Model(path, Options(mmap=False)).close()
