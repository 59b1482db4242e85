"""Reports of `edgekv eval`, printed and written when the measuring is over or was stopped."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from edgekv.evals.case import Case, Task
from edgekv.evals.table import Table

from .wording import worded

WIDE = 400  # columns in files and pipes, so that nothing is folded

Measured = Sequence[tuple[Case, dict[str, Any]]]


def by_task(measured: Measured) -> Iterator[tuple[Task, Measured]]:
    """The results of each task."""
    for task in {case.task.name: case.task for case, _ in measured}.values():
        yield task, [(case, result) for case, result in measured if case.task == task]


def print_tables(measured: Measured, baseline: str | None) -> None:
    """A table for each task, and why settings were refused."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    for task, part in by_task(measured):
        console.print(f"{task.name}:", _rich(task.table(part, baseline)))
    for reason in dict.fromkeys(result["refused"] for _, result in measured if "refused" in result):
        console.print(f"refused: {worded(reason)}", soft_wrap=True, markup=False)


def as_json(measured: Measured, baseline: str | None) -> str:
    """Return the results of all tables, and the versions and settings that they were measured with."""
    tables = {task.name: task.table(part, baseline).data for task, part in by_task(measured)}
    refused = dict.fromkeys(result["refused"] for _, result in measured if "refused" in result)
    about = {"edgekv": version("edgekv"), "machine": platform.machine(), "python": platform.python_version()}
    return json.dumps(about | {"tables": tables, "refused": list(refused)}, ensure_ascii=False)


def _rich(table: Table) -> RichTable:
    made = RichTable()
    for i in table.columns():
        is_number = all(_is_number(row[i]) for row in table.rows)
        made.add_column(table.headers[i], justify="right" if is_number else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*(escape(row[i]) for i in table.columns()))
    return made


def _is_number(cell: str) -> bool:
    return not cell or cell[0] in "-+0123456789"
