"""Bytes of sessions that are swapped out, as snapshots, and the bytes that a plan gives them."""

from __future__ import annotations

from edgekv.binding import structs
from edgekv.options import Options

NUMBER_BYTES = 4  # a position, an index or a score
HEADER_BYTES = 256  # the most of a snapshot
HISTORY_BYTES = 1 << 16  # tokens in which drafts are looked up


def session_bytes_of(shape: structs.Shape, state_bytes: int, params: structs.CacheParams, options: Options) -> int:
    """Return the most bytes of a session's snapshot: `native/src/cache/snapshot.cpp` writes so many of full cells.

    state_bytes: sliding windows and recurrent states, on all devices
    """
    assert options.budget is not None
    numbers = (
        2 + bool(params.repositions) + bool(params.accumulates) + bool(params.wo_norms)
    )  # numbers of a cell beside K and V
    cell_bytes = shape.cell_bytes + shape.n_head_total * numbers * NUMBER_BYTES
    query_bytes = shape.query_row_bytes + shape.device_query_row_bytes + NUMBER_BYTES
    return int(
        HEADER_BYTES
        + (shape.n_head_total + shape.window_cells) * NUMBER_BYTES
        + (options.budget + options.block) * cell_bytes
        + params.n_query_rows * query_bytes
        + state_bytes
        + (HISTORY_BYTES if options.n_draft else 0)
    )


def planned_swap_bytes(options: Options, session_bytes: int) -> int:
    """Return the part `swap` of a plan: the bytes that were asked for, or with a swap_dir those of a switch."""
    if options.swap_memory_bytes is not None:
        return options.swap_memory_bytes
    return session_bytes if options.swap_dir is not None else 0
