"""Pages of code, which Linux drops first if memory is short."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

Lock = Callable[[int, int], bool]  # address, bytes; False = the system refuses

MLOCK_ONFAULT = 1  # name of mman.h: pages are locked once they are read, so locking takes no memory


def lock_code(maps: Path = Path("/proc/self/maps"), lock: Lock | None = None) -> int:
    """Keep the code of this process resident until it ends; returns the bytes that the system refuses to lock.

    If a control group is above its `memory.high`, the kernel drops all its pages of files whenever a few are read.
    Without swap these are the pages with its code. An eviction that would give memory back then takes over a minute, as
    it goes on for some pages between two such pauses. Code of libraries that are loaded later is not locked.

    maps: the kernel's list of what is mapped; only Linux has it
    """
    lock = _system_lock() if lock is None else lock
    if lock is None or not maps.is_file():
        return 0
    return sum(size for address, size in _code(maps.read_text()) if not lock(address, size))


def _code(maps: str) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of code, and of the constants beside it in its files."""
    mappings = [line.split(maxsplit=5) for line in maps.splitlines()]
    programs = {file for _, access, *_, file in _of_files(mappings) if "x" in access}
    for span, access, *_, file in _of_files(mappings):
        if file in programs and "w" not in access:
            first, end = (int(address, 16) for address in span.split("-"))
            yield first, end - first


def _of_files(mappings: list[list[str]]) -> Iterator[list[str]]:
    return (mapping for mapping in mappings if mapping[-1].startswith("/"))


def _system_lock() -> Lock | None:
    """Return the lock of Linux; None if this system or its C library has none."""
    mlock2 = getattr(ctypes.CDLL(None), "mlock2", None) if sys.platform == "linux" else None
    if mlock2 is None:
        return None
    mlock2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    return lambda address, size: mlock2(address, size, MLOCK_ONFAULT) == 0
