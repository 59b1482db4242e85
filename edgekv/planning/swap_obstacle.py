"""The obstacle to two sessions that take turns in the swap space that was named for them."""

from __future__ import annotations

from edgekv.memory.sizes import MIB, format_size
from edgekv.options import Options

from .plan import Plan


def swap_obstacle(plan: Plan, options: Options) -> str:
    """Return why two sessions cannot take turns in the swap space that was named for them; "" = they can."""
    session = f"session of {plan.budget_cells} cells"
    size, named = format_size(plan.session_bytes), options.swap_memory_bytes
    if options.swaps_to_disk:
        cap = options.swap_dir_bytes
        if cap is not None and cap < plan.session_bytes:
            return (
                f"swap_bytes={format_size(cap)} does not hold a {session}, which takes {size}; raise swap_bytes to "
                f"{-(-plan.session_bytes // MIB)}MiB, or lower the budget"
            )
    elif named and named < 2 * plan.session_bytes:
        return (
            f"swap_memory={format_size(named)} does not hold two of a {session}, of which each takes {size}, as a "
            f"switch from one to the other needs; raise swap_memory to {-(-2 * plan.session_bytes // MIB)}MiB, lower "
            "the budget, or raise swap_bytes"
        )
    return ""
