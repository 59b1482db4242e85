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
NEAR = 0.9  # share of a high limit; what the kernel itself needs for the group is the rest
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
        self._highs = [HighLimit(file) for file in process.group_files(lines, mount, "memory.high", "")]
        self._soft_limits = list(process.group_files(lines, mount, "", "memory.soft_limit_in_bytes"))

    def __call__(self) -> bool:
        """Return True while the system is short of memory."""
        is_above = [high.is_exceeded() for high in self._highs]  # asks each, as each compares with its last answer
        return any(is_above) or any(map(_stalls, self._stalls)) or any(map(_holds, self._soft_limits))


class HighLimit:
    """The `memory.high` of a control group.

    The kernel counts how often the group went above it. That happens also if the group only reads files, whose pages
    are dropped at once. So nothing is short unless what cannot be dropped is near the limit. A group that takes nothing
    is not counted if the limit goes below what it holds.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._n_above = self._count()

    def is_exceeded(self) -> bool:
        """Return True if the group is above its limit, or was since the last call, and not for pages of files alone."""
        before, self._n_above = self._n_above, self._count()
        return _holds(self._file) or (self._n_above > before and _holds(self._file, NEAR))

    def _count(self) -> int:
        return _numbers(self._file.with_name("memory.events")).get("high", 0)


def _stalls(file: Path) -> bool:
    """Return True if tasks wait for memory, by a file of the kernel's pressure stall information."""
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.startswith("some "):
                return float(line.split("avg10=")[1].split()[0]) >= STALLED
    return False


def _holds(limit: Path, share: float = 1.0) -> bool:
    """Return True if a group holds more than a share of a limit."""
    with suppress(OSError, ValueError):  # version 2 says "max" for no limit
        return fixed_bytes(limit.parent) > share * int(limit.read_text())
    return False


def fixed_bytes(group: Path) -> int:
    """Return what a group holds, with those below it, without pages of files that nobody maps; 0 = unknown."""
    held = _numbers(group / "memory.stat")
    private, mapped = ("total_rss", "total_mapped_file") if "total_rss" in held else ("anon", "file_mapped")
    return held.get(private, 0) + held.get(mapped, 0)


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
