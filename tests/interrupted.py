"""An exception raised at any chosen point of a function that native code calls, as Ctrl-C may be."""

from __future__ import annotations

import itertools
import sys


class Interrupt(KeyboardInterrupt):
    """Raised by a trace function."""


def interrupted_at(number, function, call, *, opcodes):
    """Call `call()`, and raise an Interrupt at the number-th event within a Python function, its first and last too.

    function: entered by native code; what it calls is within it
    opcodes: count every instruction, not only every line

    Returns the exception that was raised, None where there are fewer events; and what `call` returned or raised.
    """
    code = function.__code__
    depth, count, raised = 0, 0, None

    def trace(frame, event, _argument):
        nonlocal depth, count, raised
        if event == "call":
            if not depth and frame.f_code is not code:
                return None
            depth += 1
            frame.f_trace_opcodes = opcodes
        count += 1
        if count > number and raised is None:
            raised = Interrupt()
            raise raised
        if event == "return":
            depth -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = call()
    except BaseException as error:
        result = error
    finally:
        sys.settrace(before)
    return raised, result


def interruptions(function, call, *, opcodes=False, step=1, run=lambda work: work()):
    """Interrupt `call()` at one event after the other, every step-th, as `interrupted_at` does; yields what came of it.

    run: calls the function that it is given, perhaps in another thread

    Ends after the first call that was not interrupted, which is yielded too.
    """
    for number in itertools.count(0, step):
        raised, result = run(lambda number=number: interrupted_at(number, function, call, opcodes=opcodes))
        yield raised, result
        if raised is None:
            return
