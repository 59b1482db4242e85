"""Measured cases as the rows of tables: by setting, under one name for the settings that mean the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from .case import Case, Measured
from .setting import AS_GIVEN, Setting

OPTIONS = ("n_sink", "recent", "reposition", "evict_every", "memory")  # told if they are not the default


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
