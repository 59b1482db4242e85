"""Bytes of sessions that are swapped out, as snapshots; the bytes that a plan gives them, and if these are enough."""

from __future__ import annotations

import ctypes

from edgekv.binding import library, structs
from edgekv.memory.raw_files import CHUNK_BYTES
from edgekv.memory.sizes import MIB, format_size
from edgekv.options import Options

from .plan import Plan

HISTORY_BYTES = 1 << 16  # tokens in which drafts are looked up


def session_bytes_of(
    shape: structs.Shape, state_bytes: int, params: structs.CacheParams, options: Options
) -> tuple[int, int]:
    """Return the most bytes of a session's snapshot, which has full cells then, and of its part before the rows.

    state_bytes: sliding windows and recurrent states, on all devices
    """
    assert options.budget is not None
    numbers = ctypes.c_uint64()
    n_bytes = library.load().edgekv_snapshot_estimate_bytes(
        ctypes.byref(shape), ctypes.byref(params), options.budget + options.block, ctypes.byref(numbers)
    )
    return n_bytes + state_bytes + (HISTORY_BYTES if options.n_draft else 0), numbers.value


def planned_swap_bytes(options: Options, numbers_bytes: int) -> int:
    """Return the part `swap` of a plan: the memory asked for, and what a session takes on its way back from the disk.

    numbers_bytes: from `session_bytes_of`. The rows pass through buffers
    """
    on_the_way = numbers_bytes + 2 * CHUNK_BYTES if options.swaps_to_disk else 0
    return (options.swap_memory_bytes or 0) + on_the_way


def swap_spare_bytes(plan: Plan, options: Options) -> int | None:
    """Return the bytes that the named swap space leaves if two sessions take turns; negative = they cannot.

    None = no limit was named.
    """
    if options.swaps_to_disk:
        return None if options.swap_dir_bytes is None else options.swap_dir_bytes - plan.session_bytes
    return options.swap_memory_bytes - 2 * plan.session_bytes if options.swap_memory_bytes else None


def swap_obstacle(plan: Plan, options: Options) -> str:
    """Return why two sessions cannot take turns in the swap space that was named for them; "" = they can."""
    if (swap_spare_bytes(plan, options) or 0) >= 0:
        return ""
    session, size = f"session of {plan.budget_cells} cells", format_size(plan.session_bytes)
    if options.swaps_to_disk:
        return (
            f"swap_bytes={format_size(options.swap_dir_bytes or 0)} does not hold a {session}, which takes {size}; "
            f"raise swap_bytes to {-(-plan.session_bytes // MIB)}MiB, or lower the budget"
        )
    return (
        f"swap_memory={format_size(options.swap_memory_bytes or 0)} does not hold two of a {session}, of which each "
        f"takes {size}, as a switch from one to the other needs; raise swap_memory to "
        f"{-(-2 * plan.session_bytes // MIB)}MiB, lower the budget, or raise swap_bytes"
    )
