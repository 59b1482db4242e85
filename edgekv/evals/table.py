"""Tables of results: lines for people, and the same as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .case import Case
from .setting import AS_GIVEN, Setting

Measured = Iterable[tuple[Case, Mapping[str, Any]]]
SETTING_HEADERS = ("policy", "cells", "block", "cache", "options", "tokens")
ALWAYS = ("policy", "cells", "tokens")  # columns that a table has even if all its rows agree
OPTIONS = ("n_sink", "recent", "reposition", "evict_every", "memory")  # told if they are not the default


@dataclass(frozen=True)
class Table:
    """Rows of cells under headers, and one dict a row for JSON.

    n_keys: the first columns, which say what was measured; the others say what was found
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


def valid_results(measured: Measured) -> Iterator[tuple[Case, Mapping[str, Any]]]:
    """Yield the cases that were not refused. Settings that mean the same become one, the first of them.

    Two grids may name one full cache with different values of fields that mean nothing to it.
    """
    settings: dict[Setting, Setting] = {}
    for case, result in measured:
        if "refused" not in result:
            yield replace(case, setting=settings.setdefault(case.setting.canonical, case.setting)), result


def setting_cells(setting: Setting, length: int) -> tuple[str, ...]:
    """Return the cells of a row for its setting, under `SETTING_HEADERS`."""
    cells = "all" if setting.is_full else str(setting.budget)
    tokens = "as given" if length == AS_GIVEN else f"{length:,}"
    given, usual = setting.as_dict(), asdict(Setting())
    options = [f"{name}={given[name]}" for name in OPTIONS if given.get(name, usual[name]) != usual[name]]
    return (setting.name, cells, str(setting.block), setting.kv_type, ", ".join(options), tokens)


def labels(settings: Iterable[Setting]) -> dict[Setting, str]:
    """Return names of settings for pictures, whatever the budget: the name, and block and cache if most have others."""
    found = list(settings)
    usual = {what: Counter(getattr(setting, what) for setting in found).most_common(1) for what in ("block", "kv_type")}
    made = {}
    for setting in found:
        own = [f"block {setting.block}"] if setting.block != usual["block"][0][0] else []
        own += [setting.kv_type] if setting.kv_type != usual["kv_type"][0][0] else []
        made[setting] = ", ".join([setting.name, *own])
    return made
