"""Pressure: does the system run short of memory? Each system says it in a way of its own, behind one function."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from . import process

Source = Callable[[], bool]  # True while the system is short of memory

STALLED = 10.0  # percent of the last ten seconds in which some task waited for memory
WARNED = 2  # macOS: 1 = normal, 2 = warning, 4 = critical


class LinuxPressure:
    """Asks the kernel: stalls (PSI) of the machine and of this control group, and whether the group is above its
    `memory.high`, or in version 1 above its `memory.soft_limit_in_bytes`.

    proc, mount, groups: the kernel's files
    """

    def __init__(
        self,
        proc: Path = Path("/proc/pressure/memory"),
        groups: Path = Path("/proc/self/cgroup"),
        mount: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        lines = groups.read_text() if groups.is_file() else ""
        self._stalls = [proc, *process.group_files(lines, mount, "memory.pressure", "")]
        self._events = list(process.group_files(lines, mount, "memory.events", ""))
        self._limits = list(process.group_files(lines, mount, "", "memory.soft_limit_in_bytes"))
        self._n_high = self._throttled()

    def __call__(self) -> bool:
        """Return True while the system is short of memory."""
        before, self._n_high = self._n_high, self._throttled()
        return self._n_high > before or any(map(_stalls, self._stalls)) or any(map(_is_above, self._limits))

    def _throttled(self) -> int:
        """Return how often groups were above their `memory.high`."""
        return sum(_numbers(file).get("high", 0) for file in self._events)


def _stalls(file: Path) -> bool:
    """Return True if tasks wait for memory, by a file of the kernel's pressure stall information."""
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.startswith("some "):
                return float(line.split("avg10=")[1].split()[0]) >= STALLED
    return False


def _is_above(soft_limit: Path) -> bool:
    """Return True if a group of version 1 holds more than its soft limit, without pages of files that nobody maps."""
    with suppress(OSError, ValueError):
        held = _numbers(soft_limit.with_name("memory.stat"))
        return held.get("total_rss", 0) + held.get("total_mapped_file", 0) > int(soft_limit.read_text())
    return False


def _numbers(file: Path) -> dict[str, int]:
    """Return the numbers by name that a file lists; {} if it cannot be read."""
    with suppress(OSError, ValueError):
        return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
    return {}


def mac_pressure(library: object | None = None) -> Source:
    """Return a source that asks macOS for its level of memory pressure."""
    sysctl = (ctypes.CDLL(None) if library is None else library).sysctlbyname  # type: ignore[attr-defined]

    def is_short() -> bool:
        level, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        failed = sysctl(b"kern.memorystatus_vm_pressure_level", ctypes.byref(level), ctypes.byref(size), None, 0)
        return not failed and level.value >= WARNED

    return is_short


def windows_pressure(library: object | None = None) -> Source:
    """Return a source that asks Windows whether it has announced that memory is low."""
    kernel = ctypes.CDLL("kernel32") if library is None else library
    create, query = kernel.CreateMemoryResourceNotification, kernel.QueryMemoryResourceNotification  # type: ignore[attr-defined]
    create.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(create(0))  # LowMemoryResourceNotification

    def is_short() -> bool:
        is_low = ctypes.c_int()
        return bool(query(handle, ctypes.byref(is_low))) and is_low.value != 0

    return is_short


def system_pressure() -> Source:
    """Return the source of this system."""
    if sys.platform == "win32":
        return windows_pressure()
    return mac_pressure() if sys.platform == "darwin" else LinuxPressure()
