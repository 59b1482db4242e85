"""llama.cpp, made to fail while it computes."""

from __future__ import annotations

import contextlib
import ctypes

from edgekv.binding import library


@contextlib.contextmanager
def failing_after(runtime, n_calls):
    """llama.cpp gives up computing once it has asked `n_calls` times whether to."""
    asked = 0

    @ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
    def give_up(_):
        nonlocal asked
        asked += 1
        return asked > n_calls

    set_callback = library.load().llama_set_abort_callback
    set_callback.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    set_callback(runtime.context.handle, give_up, None)
    try:
        yield
    finally:
        set_callback(runtime.context.handle, None, None)
