"""Memory of this process, as the operating system reports it, and what its runtimes hold of it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_held: list[int] = []  # bytes of each runtime that is open in this process


def resident_bytes() -> int:
    """Return the bytes resident now. Memory-mapped weights count."""
    if sys.platform == "linux":
        return _status("VmRSS")
    return int(_memory_info().rss)


def peak_resident_bytes() -> int:
    """Return the most bytes that were ever resident in this process.

    Linux: VmHWM, which a new program starts afresh (ru_maxrss is inherited from the parent).
    """
    if sys.platform == "linux":
        return _status("VmHWM")
    if sys.platform == "win32":
        return int(_memory_info().peak_wset)
    import resource

    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped a process. Only Linux can tell; False elsewhere."""
    try:
        # the name before the state may hold anything, blanks and parentheses too
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    except OSError:
        return False


def return_freed_memory() -> None:
    """Give freed memory back to the system, so that it does not count on top of what comes next (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def hold(n_bytes: int) -> Callable[[], None]:
    """Note the bytes that a runtime holds beside the program. Call the returned function once when it is freed."""
    _held.append(n_bytes)
    return lambda: _held.remove(n_bytes)


def held() -> tuple[int, int]:
    """Return the number of open runtimes, and the bytes that they hold."""
    holdings = list(_held)
    return len(holdings), sum(holdings)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _memory_info() -> Any:
    import psutil

    return psutil.Process().memory_info()
