"""Work and memory that the process needs beside the model, done or reserved before a plan, so that the plan counts it.

Python imports many modules only when they are first used. A plan cannot count what is imported after its measurement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_warming = threading.RLock()  # held by the thread that warms up; its work may make a plan
_waiting: list[Callable[[], object]] = []
_reserved: list[int] = []


def register_warmup(work: Callable[[], object]) -> None:
    """Call `work` once, before the next plan of this process.

    A program registers what it needs beside a reply. `work` imports the modules and does a small piece of their work.
    """
    _waiting.append(work)


def warm_up() -> None:
    """Do all work that was registered, or wait until another thread has done it."""
    with _warming:
        while _waiting:
            _waiting.pop(0)()


def reserve(n_bytes: int) -> Callable[[], None]:
    """Have plans of this process count bytes that the program takes later. Call the returned function to free them."""
    _reserved.append(n_bytes)

    def give_back() -> None:
        if n_bytes in _reserved:
            _reserved.remove(n_bytes)

    return give_back


def reserved_bytes() -> int:
    """Return the sum of all reserved bytes."""
    return sum(_reserved)
