"""Imports and builds beforehand what the process will need, so that a plan measures it.

Python imports many things only when they are first used. What comes after the measurement would be in no plan.
"""

from __future__ import annotations

from collections.abc import Callable

_waiting: list[Callable[[], object]] = []


def before_plans(work: Callable[[], object]) -> None:
    """Have `work` done once, before the next plan that is made in this process.

    A program declares in this way what it needs beside a reply. `work` imports the modules and does a small piece of
    what they will do.
    """
    _waiting.append(work)


def warm_up() -> None:
    """Do all that is waiting."""
    while _waiting:
        _waiting.pop(0)()
