"""Bytes of sessions that are swapped out, as snapshots, and the bytes that a plan gives them."""

from __future__ import annotations

import ctypes

from edgekv.binding import library, structs
from edgekv.memory.raw_files import CHUNK_BYTES
from edgekv.options import Options

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
