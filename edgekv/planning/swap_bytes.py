"""Bytes of sessions that are swapped out, as snapshots, and the bytes that a plan gives them."""

from __future__ import annotations

from edgekv.binding import structs
from edgekv.memory.raw_files import CHUNK_BYTES
from edgekv.options import Options

NUMBER_BYTES = 4  # a position, an index or a score
HEADER_BYTES = 256  # the most of a snapshot
HISTORY_BYTES = 1 << 16  # tokens in which drafts are looked up


def numbers_bytes_of(shape: structs.Shape, params: structs.CacheParams, options: Options) -> int:
    """Return the most bytes of the numbers before the rows of a snapshot (`native/src/cache/snapshot.cpp`)."""
    assert options.budget is not None
    n_carried = 2 + bool(params.repositions) + bool(params.accumulates) + bool(params.wo_norms)  # numbers of a cell
    n_numbers = shape.n_head_total * (1 + n_carried * (options.budget + options.block))
    return int(HEADER_BYTES + (n_numbers + shape.window_cells + params.n_query_rows) * NUMBER_BYTES)


def session_bytes_of(shape: structs.Shape, state_bytes: int, params: structs.CacheParams, options: Options) -> int:
    """Return the most bytes of a session's snapshot, which has full cells then.

    state_bytes: sliding windows and recurrent states, on all devices
    """
    assert options.budget is not None
    return int(
        numbers_bytes_of(shape, params, options)
        + (options.budget + options.block) * shape.cell_bytes
        + params.n_query_rows * (shape.query_row_bytes + shape.device_query_row_bytes)
        + state_bytes
        + (HISTORY_BYTES if options.n_draft else 0)
    )


def planned_swap_bytes(options: Options, numbers_bytes: int) -> int:
    """Return the part `swap` of a plan: the memory asked for, and what a session takes on its way back from the disk.

    numbers_bytes: from `numbers_bytes_of`. The rows pass through buffers
    """
    on_the_way = numbers_bytes + 2 * CHUNK_BYTES if options.swaps_to_disk else 0
    return (options.swap_memory_bytes or 0) + on_the_way
