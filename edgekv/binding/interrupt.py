"""Holds Ctrl-C back while the native library calls Python: it would print the exception there and lose it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Ctrl-C raises nothing inside the block; it raises KeyboardInterrupt afterwards.

    Yields a function that says whether Ctrl-C came. Nothing changes if the program has its own handler for Ctrl-C, or
    outside the main thread.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield lambda: False
        return
    came = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt  # whatever else went wrong, such as a load that was given up
