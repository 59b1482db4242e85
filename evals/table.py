"""What a task says of its results: lines for people, and the same as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .case import Case
from .setting import Setting

Measured = Iterable[tuple[Case, Mapping[str, Any]]]
SETTING_HEADERS = ("policy", "cells", "block", "cache", "tokens")


@dataclass(frozen=True)
class Table:
    """Rows of cells under headers, and one dict a row for JSON."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Sequence[Mapping[str, Any]]


def setting_cells(setting: Setting, length: int) -> tuple[str, ...]:
    """What a row says of how a text was read, under `SETTING_HEADERS`."""
    cells = "all" if setting.is_full else str(setting.budget)
    return (setting.name, cells, str(setting.block), setting.kv_type, f"{length:,}")
