"""Ctrl-C while the native library calls Python back: an exception would be lost there, and printed with a traceback."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """While it lasts, Ctrl-C raises nothing; what is yielded tells whether it came. Afterwards it is KeyboardInterrupt.

    Where a program handles Ctrl-C in a way of its own, or another thread runs than the one that does, nothing changes.
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
