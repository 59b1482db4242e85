"""Sizes in bytes, as people write them."""

from __future__ import annotations

import math
import re

from edgekv.errors import ConfigError

MIB = 1 << 20

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


def format_size(n_bytes: int) -> str:
    """Return bytes as MiB with one decimal, for people; as KiB or bytes if that would be 0.0."""
    if n_bytes == 0 or n_bytes >= MIB / 20:
        return f"{n_bytes / MIB:.1f} MiB"
    return f"{n_bytes / 1024:.1f} KiB" if n_bytes >= 1024 else f"{n_bytes} bytes"
