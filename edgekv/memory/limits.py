"""The memory that a process may use: that of the machine, and the limit of its control group."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgekv.errors import CeilingError, ConfigError

from .sizes import MIB, format_size, parse_size

LEAST_BYTES = 1 << 16  # a user who asks for less means MiB, not bytes


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """Bytes that a control group may have, and the file with that limit."""

    n_bytes: int
    file: Path


def parse_ceiling(memory: int | str) -> int:
    """Return the bytes of a size, or of `"25%"` of the physical memory, or of the control group's lower limit.

    Raises ConfigError for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", memory) if isinstance(memory, str) else None
    if match is None:
        n_bytes = parse_size(memory)
        if n_bytes < LEAST_BYTES:
            raise ConfigError(f"memory={memory} means {n_bytes} bytes, which is too little; write '{n_bytes}MiB'")
        return n_bytes
    percent = float(match[1])
    if not 0 < percent <= 100:
        raise ConfigError(
            f"memory={memory!r} is not possible; give more than 0 % and at most 100 %, or a size in bytes"
        )
    limit = group_limit()
    whole = physical_bytes() if limit is None else min(physical_bytes(), limit.n_bytes)
    return int(whole * percent / 100)


def parse_device_ceilings(device_memory: int | str | Mapping[str, int | str] | None) -> tuple[tuple[str, int], ...]:
    """Return the ceilings of devices by name, in bytes, from "NAME=SIZE,..." or a mapping; () for a plain size or None.

    Raises ConfigError for anything else.
    """
    if isinstance(device_memory, Mapping):
        pairs = list(device_memory.items())
    elif isinstance(device_memory, str) and "=" in device_memory:
        pairs = [_name_and_size(text) for text in device_memory.split(",")]
    else:
        return ()
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"device_memory names {name} twice; give each device one ceiling")
    return tuple((name, parse_size(size)) for name, size in pairs)


def _name_and_size(text: str) -> tuple[str, str]:
    name, equals, size = (part.strip() for part in text.partition("="))
    if not (name and equals and size):
        raise ConfigError(f"device_memory has {text!r} where NAME=SIZE is due; write as in RPC0=2GiB,RPC1=1GiB")
    return name, size


def check_ceiling(ceiling_bytes: int) -> None:
    """Raise CeilingError for a ceiling above what the control group of this process may have."""
    limit = group_limit()
    if limit is not None and ceiling_bytes > limit.n_bytes:
        raise CeilingError(
            f"memory={format_size(ceiling_bytes)} is above the {format_size(limit.n_bytes)} that {limit.file} allows: "
            f"the kernel would end the process first; lower the ceiling to {limit.n_bytes // MIB}MiB, or raise that "
            "limit",
            required_bytes=ceiling_bytes,
            ceiling_bytes=limit.n_bytes,
        )


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
    for file in _limit_files(groups.read_text(), mount):
        text = file.read_text().strip() if file.is_file() else "max"
        if text.isdigit():
            limits.append(GroupLimit(int(text), file))
    return min(limits, key=lambda limit: limit.n_bytes, default=None)


def _limit_files(groups: str, mount: Path) -> Iterator[Path]:
    """Yield the files that may hold limits, in cgroups v2 and v1. A container may see its own group as the root."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            tops, name = [mount, mount / "unified"], "memory.max"
        elif "memory" in controllers.split(","):
            tops, name = [mount / "memory"], "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        yield from (top / part / name for top in tops for part in (group, *group.parents))
