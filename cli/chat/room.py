"""Memory of the line editor and of Markdown: tests if the ceiling has room for them beside enough cells."""

from __future__ import annotations

import os
import sys
from typing import Any

import edgekv
from edgekv.memory.sizes import MIB
from edgekv.models import find_model

from ..shared_options import ALONE

COMFORT_BYTES = 18 * MIB  # 16 measured (docs/chat.md), and what this plan itself leaves behind
ENOUGH_CELLS = 512  # the planner, too, calls these enough (docs/memory.md)


def can_draw() -> bool:
    """Return True if this is a terminal that can be drawn on, and its user wants that."""
    dull = os.environ.get("TERM", "dumb") in ("dumb", "unknown") and sys.platform != "win32"
    return sys.stdin.isatty() and sys.stdout.isatty() and not dull and not os.environ.get("NO_COLOR")


def has_room(options: dict[str, Any]) -> bool:
    """Return True if a runtime of these options has enough cells beside the editor, or all that it asks for.

    For the editor's sake none of its layers may be streamed, and no cells be even that would be divided over heads.
    """
    if options["isolated"]:  # the ceiling is for the worker
        return True
    from edgekv.planning.choice import Request  # other commands show their help without it

    request = Request.of(**{name: value for name, value in options.items() if name != "model"})
    asked = request.of_model(find_model(options["model"])).options
    try:
        plan = edgekv.plan(**ALONE, **options | {"memory": asked.ceiling_bytes - COMFORT_BYTES})
        if plan.n_streamed or plan.policy != asked.parsed_policy.spec:
            alone = edgekv.plan(**ALONE, **options)
            if (plan.n_streamed and not alone.n_streamed) or plan.policy != alone.policy:
                return False  # weights in memory are worth more than an editor
    except edgekv.CeilingError:
        return False
    beside = plan.block + asked.probe_cells
    enough = min(ENOUGH_CELLS, plan.n_ctx_train - beside) if asked.budget is None else asked.budget
    return not plan.cell_bytes or plan.budget_cells >= enough


def start_again(**variables: str) -> None:
    """Run this command anew in the same process with further variables, without the MiB that a plan left behind.

    Returns if that is not possible.
    """
    arguments = sys.argv[1:]
    as_started = not arguments or sys.orig_argv[-len(arguments) :] == arguments
    if os.name == "posix" and as_started and sys.executable:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | variables)
