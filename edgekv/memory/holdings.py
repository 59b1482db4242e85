"""Memory that the runtimes of this process hold, so that the plan of another one can name it."""

from __future__ import annotations

from collections.abc import Callable

_held: list[int] = []  # bytes of each runtime that is open in this process


def hold(n_bytes: int) -> Callable[[], None]:
    """Note the bytes that a runtime holds beside the program. Call the returned function once when it is freed."""
    _held.append(n_bytes)
    return lambda: _held.remove(n_bytes)


def held() -> tuple[int, int]:
    """Return the number of open runtimes, and the bytes that they hold."""
    holdings = list(_held)
    return len(holdings), sum(holdings)
