"""Tables of results: lines for people, and the same as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SETTING_HEADERS = ("policy", "cells", "block", "cache", "options", "tokens")
ALWAYS = ("policy", "cells", "tokens")  # columns that a table has even if all its rows agree


@dataclass(frozen=True)
class Table:
    """Rows of cells under headers, and one dict a row for JSON.

    n_keys: number of first columns, which have the setting; the others have the results
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Sequence[Mapping[str, Any]]
    n_keys: int = len(SETTING_HEADERS)

    def columns(self) -> list[int]:
        """Return the columns to show. A column about the setting is left out if all rows agree in it."""
        found = list(range(len(self.headers)))
        return [
            i for i in found if i >= self.n_keys or self.headers[i] in ALWAYS or len({row[i] for row in self.rows}) > 1
        ]
