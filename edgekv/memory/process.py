"""Read the memory of this process from the operating system: the bytes that it holds, and its limits."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # names of malloc.h (glibc)
HEAP_BLOCK = 1 << 20  # bytes; larger blocks have pages of their own

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
    """Give freed memory back to the system, so that it does not count beside the next allocations (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def use_one_heap() -> None:
    """Have all threads share one heap, whose free end goes back to the system (glibc). For a process of edgekv's own.

    A heap for each thread would keep the peak of each, though only one works at a time, and large freed blocks would
    raise the size from which a block has pages of its own.
    """
    if sys.platform == "linux" and (option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for name, value in ((M_ARENA_MAX, 1), (M_TRIM_THRESHOLD, HEAP_BLOCK), (M_MMAP_THRESHOLD, HEAP_BLOCK)):
            option(name, value)


def hold(n_bytes: int) -> Callable[[], None]:
    """Note the bytes that a runtime holds beside the program. Call the returned function once when it is freed."""
    _held.append(n_bytes)
    return lambda: _held.remove(n_bytes)


def held() -> tuple[int, int]:
    """Return the number of open runtimes, and the bytes that they hold."""
    holdings = list(_held)
    return len(holdings), sum(holdings)


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """Bytes that a control group may have, and the file with that limit."""

    n_bytes: int
    file: Path


def physical_bytes() -> int:
    """Return the bytes of this machine's memory."""
    if sys.platform == "linux":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    import psutil

    return int(psutil.virtual_memory().total)


def available_bytes() -> int:
    """Return the bytes of this machine's memory that are free, or can be freed at once."""
    if sys.platform == "linux":
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # kernels before 3.14
    import psutil

    return int(psutil.virtual_memory().available)


def group_limit(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> GroupLimit | None:
    """Return the lowest limit of this process's control group and those above it; None without one, or Linux."""
    if not groups.is_file():
        return None
    limits = []
    for file in group_files(groups.read_text(), mount, "memory.max", "memory.limit_in_bytes"):
        text = file.read_text().strip() if file.is_file() else "max"
        if text.isdigit():
            limits.append(GroupLimit(int(text), file))
    return min(limits, key=lambda limit: limit.n_bytes, default=None)


def group_files(groups: str, mount: Path, new: str, old: str) -> Iterator[Path]:
    """Yield the files of this process's control groups and those above them that may be there.

    new, old: their names in versions 2 and 1; "" = there is none. A container may see its own group as the root
    """
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops, name = [mount, mount / "unified"], new
        elif "memory" in controllers.split(","):
            tops, name = [mount / "memory"], old
        else:
            continue
        if not name:
            continue
        group = PurePosixPath(path.lstrip("/"))
        yield from (top / part / name for top in tops for part in (group, *group.parents))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _memory_info() -> Any:
    import psutil

    return psutil.Process().memory_info()
