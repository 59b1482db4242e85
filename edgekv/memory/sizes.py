"""Sizes in bytes, shares, and ceilings of memory, as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from edgekv.errors import CeilingError, ConfigError

from . import process

MIB = 1 << 20
LEAST_BYTES = 1 << 16  # a user whose ceiling is less means MiB, not bytes

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}{i}": 1024**n for n, p in enumerate("KMGT", 1) for i in ("", "i", "iB")}
_UNITS |= {f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)}
_FOLDED = {unit.lower(): factor for unit, factor in _UNITS.items()}


def parse_size(size: int | str) -> int:
    """Return the bytes of `268435456`, `"256MiB"`, `"256M"` (the same) or `"1.5GB"`.

    Raises ConfigError for anything else, for sizes below 1, and for text without a unit below 1 MiB, because
    "256" does not mean bytes.
    """
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", size.lower())
        factor = _FOLDED.get(match[2]) if match else None
        n_bytes = float(match[1]) * factor if match and factor else math.inf
        if match is None or n_bytes == math.inf:
            raise ConfigError(f"size {size!r} is not understood; write bytes, or a number with MiB, GiB, MB or GB")
        size = int(n_bytes)
        if not match[2] and 0 < size < MIB:
            unit = "MiB" if size < 1 << 16 else "KiB"
            raise ConfigError(f"size {match[1]} means bytes, which is too little; write {match[1]}{unit}")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(
            f"size {size!r} is not a positive whole number; write bytes, or a number with MiB, GiB, MB or GB"
        )
    return size


def parse_size_or_none(size: int | str | None) -> int | None:
    """Return the bytes of a size, which may be 0; None = it is left open. Raises ConfigError."""
    if size is None:
        return None
    return 0 if size in (0, "0") else parse_size(size)


def parse_archive(archive: int | str) -> int | None:
    """Return the named limit of an archive; 0 = "off", None = "auto". Raises ConfigError."""
    if archive == "auto":
        return None
    try:
        return 0 if archive in ("off", "0", 0) else parse_size(archive)
    except ConfigError as error:
        raise ConfigError(f"archive={archive!r} is not possible: {error}, or auto, or off") from error


def parse_share(name: str, share: float | str | None) -> float | None:
    """Return a share, which may be written as a percentage. Raises ConfigError."""
    if share is None:
        return None
    try:
        text = str(share).strip()
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if isinstance(share, bool) or not 0 <= value <= 1:
        raise ConfigError(f"{name}={share!r} is not possible; give a share from 0 to 1, such as 0.5 or 50%")
    return value


def format_size(n_bytes: int) -> str:
    """Return bytes as MiB with one decimal, for people; as KiB or bytes if that would be 0.0."""
    if n_bytes == 0 or n_bytes >= MIB / 20:
        return f"{n_bytes / MIB:.1f} MiB"
    return f"{n_bytes / 1024:.1f} KiB" if n_bytes >= 1024 else f"{n_bytes} bytes"


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
    limit = process.group_limit()
    whole = process.physical_bytes() if limit is None else min(process.physical_bytes(), limit.n_bytes)
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
    """Raise CeilingError for a ceiling above the limit of this process's control group."""
    limit = process.group_limit()
    if limit is not None and ceiling_bytes > limit.n_bytes:
        raise CeilingError(
            f"memory={format_size(ceiling_bytes)} is above the {format_size(limit.n_bytes)} that {limit.file} allows: "
            f"the kernel would end the process first; lower the ceiling to {limit.n_bytes // MIB}MiB, or raise that "
            "limit",
            required_bytes=ceiling_bytes,
            ceiling_bytes=limit.n_bytes,
        )
