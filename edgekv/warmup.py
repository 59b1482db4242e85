"""What the process will need beside the model: done or named beforehand, so that a plan counts it.

Python imports many things only when they are first used. What comes after the measurement would be in no plan.
"""

from __future__ import annotations

from collections.abc import Callable

_waiting: list[Callable[[], object]] = []
_reserved: list[int] = []


def register_warmup(work: Callable[[], object]) -> None:
    """Have `work` done once, before the next plan that is made in this process.

    A program declares in this way what it needs beside a reply. `work` imports the modules and does a small piece of
    what they will do.
    """
    _waiting.append(work)


def warm_up() -> None:
    """Do all that is waiting."""
    while _waiting:
        _waiting.pop(0)()


def reserve(n_bytes: int) -> Callable[[], None]:
    """Have plans of this process count bytes that the program takes later. Call what is returned to give them back."""
    _reserved.append(n_bytes)

    def give_back() -> None:
        if n_bytes in _reserved:
            _reserved.remove(n_bytes)

    return give_back


def reserved_bytes() -> int:
    """All that was reserved."""
    return sum(_reserved)
