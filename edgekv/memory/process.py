"""What the operating system says this process holds."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ALIGNED_BYTES = 2 << 20  # files as large as this lie where pages around those that are touched are always the same


def resident_bytes() -> int:
    """Bytes resident now. Memory-mapped weights count."""
    if sys.platform == "linux":
        return _status("VmRSS")
    return int(_memory_info().rss)


def counted_bytes(own: str) -> int:
    """Bytes of this process that a plan counts: what is resident now, but small files of code and `own` code in full.

    Linux also maps the pages around those that are touched. Which pages these are depends on the address of a small
    file, and that is random in every process. So the same program would be counted differently from run to run. Most
    code of `own`, the library that runs the model, is only touched after the plan.
    """
    if sys.platform != "linux":
        return resident_bytes()
    mapped: Counter[str] = Counter()
    resident: Counter[str] = Counter()
    code = {"[stack]"}
    name, readable = "", False
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            field, _, rest = line.partition(" ")
            if not field.endswith(":"):  # a mapping: addresses, permissions, offset, device, inode, name
                permissions, _, _, _, *names = rest.split(maxsplit=4)
                name, readable = names[0].strip() if names else "", "r" in permissions
                if "x" in permissions and name.startswith("/"):
                    name += " (code)" * (name == own)
                    code.add(name)
            elif field == "Size:" and readable:
                mapped[name] += int(rest.split()[0]) * 1024
            elif field == "Rss:":
                resident[name] += int(rest.split()[0]) * 1024
    whole = {name for name in code if mapped[name] < ALIGNED_BYTES or name.startswith(own)}
    return sum(mapped[name] if name in whole else n_bytes for name, n_bytes in resident.items())


def peak_resident_bytes() -> int:
    """The most bytes that were ever resident in this process.

    Linux: VmHWM, which a new program starts afresh (ru_maxrss is inherited from the parent).
    """
    if sys.platform == "linux":
        return _status("VmHWM")
    if sys.platform == "win32":
        return int(_memory_info().peak_wset)
    import resource

    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; where only Linux can tell, False elsewhere."""
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


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _memory_info() -> Any:
    import psutil

    return psutil.Process().memory_info()
