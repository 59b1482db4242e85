"""Ctrl-C while native code calls Python: nothing is lost, nothing is printed, and it ends the call that it came to."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading

import pytest
from children import LIMIT_S
from faked_estimates import choose_setting
from interrupted import Interrupt, interrupted_at, interruptions

from edgekv.binding import plan_structs
from edgekv.binding.callback import Callback
from edgekv.binding.model import Model
from edgekv.errors import ConfigError, NativeError
from edgekv.memory import process
from edgekv.options import KV_TYPES, Options

PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


@pytest.fixture
def usual_handler():
    """As in a program that nobody started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=["main", "other"])
def in_thread(request):
    """A function that calls another one in the main thread, or in one of its own, and raises what that raises."""

    def call(function):
        if request.param == "main":
            return function()
        ended = []

        def run():
            try:
                ended.append((function(), None))
            except BaseException as error:
                ended.append((None, error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(LIMIT_S)
        result, error = ended.pop()
        if error is not None:
            raise error
        return result

    return call


@pytest.fixture(autouse=True)
def same_hook():
    """The hook of the program is in place again, and nothing was given to it."""
    given, before = [], sys.unraisablehook
    hook = sys.unraisablehook = given.append
    yield given
    assert sys.unraisablehook is hook
    sys.unraisablehook = before
    assert given == []


def doubled(number):
    return 2 * number


def native_call(callback, *numbers):
    """As a library that goes on whatever it is answered, and fails if one answer is -1."""
    with callback:
        answers = [callback.native(number) for number in numbers]
        if -1 in answers:
            raise NativeError("the callback failed")
        return answers


def test_every_instruction_of_a_callback_may_be_interrupted(in_thread):
    callback = Callback(PROTOTYPE, doubled, failed=-1)
    *cut, whole = interruptions(callback.called, lambda: native_call(callback, 1, 2), opcodes=True, run=in_thread)
    assert all(result is raised for raised, result in cut)
    assert len(cut) > 40
    assert whole == (None, [2, 4])


@pytest.mark.parametrize("error", [ValueError("a"), MemoryError(), KeyboardInterrupt(), SystemExit(3)])
def test_errors_come_after_the_call_in_place_of_the_librarys(error):
    def fail(number):
        calls.append(number)
        raise error

    calls = []
    callback = Callback(PROTOTYPE, fail, failed=-1)
    with pytest.raises(type(error)) as found:
        native_call(callback, 1, 2)
    assert found.value is error
    assert found.value.__suppress_context__
    assert calls == [1]  # the second call fails at once


def test_hooks_of_threads_that_overlap_are_dropped_in_any_order(same_hook):
    callbacks = [Callback(PROTOTYPE, doubled, failed=-1) for _ in range(3)]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)):
        for callback in callbacks:
            callback.__enter__()
        for i in order:
            callbacks[i].__exit__(None, None, None)
        assert sys.unraisablehook == same_hook.append


def test_what_is_dropped_elsewhere_goes_where_it_went(same_hook):
    """In another callback, in a finalizer within the callback, and in the same callback in another thread."""

    class Unsound:
        def __del__(self):
            raise ValueError("in a finalizer")

    def drop(number):
        unsound = Unsound()
        del unsound
        return number

    callback = Callback(PROTOTYPE, drop, failed=-1)
    other = PROTOTYPE(lambda number: number // 0)
    with callback:
        other(1)
        assert callback.native(1) == 1
        thread = threading.Thread(
            target=lambda: interrupted_at(0, callback.called, lambda: callback.native(1), opcodes=False)
        )
        thread.start()
        thread.join(LIMIT_S)
    found = [dropped.exc_type for dropped in same_hook]
    assert found == [ZeroDivisionError, ValueError, Interrupt]
    same_hook.clear()


def choice(**given):
    named = {"least_budget": 8, "block": 32, "kv_type": KV_TYPES["f16"], "n_ctx_train": 1 << 20, "repositions": True}
    return plan_structs.Choice(**(named | given))


def test_a_planner_may_be_interrupted_anywhere(in_thread):
    """The library may take any answer for a fit, so the interrupt counts even where it chose a setting."""

    def plan():
        return choose_setting(choice(), lambda setting: 100 - setting.budget)

    *cut, whole = interruptions(Callback._answer, plan, opcodes=True, step=3, run=in_thread)
    assert all(result is raised for raised, result in cut)
    assert len(cut) > 50
    assert whole[1].budget == 100


def test_what_a_model_cannot_have_does_not_fit():
    """A refusal counts if the user named what is refused, and not if the planner may choose something else."""

    def refuse(setting):
        if setting.kv_type == KV_TYPES["q8_0"]:
            raise ConfigError("no q8_0")
        return 100 - setting.budget if setting.kv_type == KV_TYPES["f16"] else -1

    assert choose_setting(choice(kv_type=0), refuse).kv_type == KV_TYPES["f16"]
    with pytest.raises(ConfigError, match="no q8_0"):
        choose_setting(choice(kv_type=KV_TYPES["q8_0"]), refuse)
    assert choose_setting(choice(budget=101), refuse) is None


@pytest.mark.usefixtures("usual_handler")
@pytest.mark.parametrize("handler", [signal.default_int_handler, "own"])
def test_a_model_that_loads_is_given_up(tiny_model, monkeypatch, handler):
    """The interrupt comes inside a callback of the library, where an exception would go nowhere."""

    def own(_signal, _frame):
        raise Interrupt

    path = tiny_model()
    calls = []
    signal.signal(signal.SIGINT, own if handler == "own" else handler)

    def interrupted():
        calls.append(True)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(process, "return_freed_memory", interrupted)
    with pytest.raises(Interrupt if handler == "own" else KeyboardInterrupt):
        Model(path, Options(mmap=False))
    assert calls == [True]
    monkeypatch.undo()
    Model(path, Options(mmap=False)).close()


@pytest.mark.nightly
@pytest.mark.parametrize("in_thread", ["main", "other"], indirect=True)
def test_a_model_that_loads_is_interrupted_at_every_line(tiny_model, in_thread):
    path = tiny_model(n_layer=1)
    *cut, (_, model) = interruptions(Callback._answer, lambda: Model(path, Options(mmap=False)), run=in_thread)
    model.close()
    assert all(result is raised for raised, result in cut)
    assert len(cut) > 50
