"""What a process imports and builds sooner or later, done at once, before a plan measures what Python holds.

Python imports much only when it is first used. What comes after the measurement would be in no plan.
"""

from __future__ import annotations

from collections.abc import Callable

_waiting: list[Callable[[], object]] = []


def before_plans(work: Callable[[], object]) -> None:
    """Have `work` done, once, before the next plan that is made in this process.

    A program declares so what it will need beside a reply: it imports the modules, and does a small piece of the work.
    """
    _waiting.append(work)


def warm_up() -> None:
    """Do all that is waiting."""
    while _waiting:
        _waiting.pop(0)()
