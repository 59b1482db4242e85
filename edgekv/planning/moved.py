"""The plan of an open runtime whose ceiling moves: its cells follow, all else stays."""

from __future__ import annotations

import mmap
from dataclasses import replace

from edgekv.errors import CeilingError
from edgekv.memory.sizes import MIB, format_size
from edgekv.options import Options

from .plan import Plan

PAGES = 16 * mmap.PAGESIZE  # pages of a slot of which a part is given up, one for keys and one for values of each pool


def moved_plan(opened: Plan, options: Options, ceiling_bytes: int, beside: int = 0, *, n_pinned: int = 0) -> Plan:
    """Return the plan of a runtime under another ceiling: with as many cells as fit, and never more than it has.

    What is given up comes in the order of `ledger.GIVEN_UP`: memory for swapped-out sessions, which then go to the
    disk, and cells down to the least budget. Weights stay as they were loaded.

    opened: the plan that it was opened with
    beside: bytes that the program took beside all that the plan counts
    n_pinned: the most pinned tokens of one of its sessions

    Raises CeilingError if the ceiling does not hold the least budget.
    """
    a_cell, pages = opened.cell_bytes * options.parallel, PAGES * options.parallel
    swappable = (options.swap_memory_bytes or 0) if options.swaps_to_disk else 0
    excess = opened.peak_bytes + beside - ceiling_bytes
    swapped = min(max(0, excess), swappable)
    excess -= swapped
    n_fewer = -(-(excess + pages) // max(1, a_cell)) if excess > 0 else 0
    budget = opened.budget_cells - n_fewer
    least = options.least_budget(n_pinned=n_pinned)
    if budget < least:
        required = opened.peak_bytes + beside - swappable - (opened.budget_cells - least) * a_cell + pages
        raise CeilingError(
            f"memory={format_size(ceiling_bytes)} does not hold what stays when cells are given up, such as weights: "
            f"{format_size(required)} with the least budget, {least} cells; name at least {-(-required // MIB)}MiB",
            required_bytes=required,
            ceiling_bytes=ceiling_bytes,
        )
    return replace(
        opened,
        ceiling_bytes=ceiling_bytes,
        budget_cells=budget,
        n_cells=opened.n_cells - n_fewer,
        parts=replace(
            opened.parts,
            swap=opened.parts.swap - swapped,
            kv=opened.parts.kv - n_fewer * a_cell + (pages if n_fewer else 0),
        ),
    )
