"""Recall: free cells are filled with archived rows that a prompt needs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgekv.binding.cache import Cache
from edgekv.binding.held_cells import HeadPositions
from edgekv.errors import ArchiveError

from .session_archive import Archive

# The queries of the first probe come from cells that lack the fact. The second probe sees what the first recalled.
ROUNDS = 2
# Positions in which a hit fades by half. What comes after one matters more than what comes before it.
BEFORE, AFTER = 20, 4
N_SINK = 4  # first positions: attention that finds nothing goes there, and what follows them would be recalled for it
MOST_RECALLED = 128  # cells of a head, on average

# (heads scanned, heads of all rounds) -> False to stop. The driver of the recall gets what it yields
GoesOn = Callable[[int, int], Generator[object, int, bool]]


class Recalled(NamedTuple):
    """Cells of a head that it filled, on average, and tokens scanned in all rounds.

    is_whole: not stopped
    needed: positions that heads held, and that score higher than one that was recalled
    """

    n_cells: int = 0
    n_scanned: int = 0
    is_whole: bool = True
    needed: HeadPositions | None = None


def recalled_cells(spare: int) -> int:
    """Return how many cells of a head a recall fills on average: half of the spare ones, at most MOST_RECALLED.

    The others take the end of the prompt and the beginning of the reply.
    """
    return min(MOST_RECALLED, spare // 2)


def recalling(
    archive: Archive,
    cache: Cache,
    probe: Callable[[], Generator[object, int, None]],
    n_cells: int,
    goes_on: GoesOn,
    n_needed: int = 0,
) -> Generator[object, int, Recalled]:
    """Fill free cells of heads with rows that a probe's queries find.

    probe: feeds the probe, once for each round
    goes_on: called between heads, with no call of the library under way; False ends the recall, with the cells of
        the round before
    n_needed: most positions of a head that are noted as needed
    If the file cannot be read, note why; cells of an earlier round stay, unless this one gave them up.
    """
    done, n_free = Recalled(), cache.n_free
    if archive.rows is None:
        return done
    rows = archive.rows.archive
    try:
        for i in range(ROUNDS):
            yield from probe()
            n_heads = n_left = rows.begin_recall(
                cache, n_cells, before=BEFORE, after=AFTER, n_sink=N_SINK, with_rest=True, n_needed=n_needed
            )
            while n_left:
                if not (yield from goes_on((i + 1) * n_heads - n_left, ROUNDS * n_heads)):
                    return done._replace(is_whole=False)
                n_left = rows.scan(cache.shape.n_threads)
            n_filled = rows.finish_recall(cache).n_cells
            n_scanned = done.n_scanned + (archive.n_tokens if n_heads else 0)
            done = Recalled(n_filled, n_scanned, needed=rows.needed)
    except ArchiveError as error:
        archive.fail(error)
        return done._replace(n_cells=n_free - cache.n_free)
    return done


def gained(before: Iterable[npt.NDArray[np.int32]], after: Iterable[npt.NDArray[np.int32]]) -> HeadPositions:
    """Return the positions that each head holds after a recall, and did not hold before. A rest is always new."""
    pairs = zip(before, after, strict=True)
    return HeadPositions.of(held[(held < 0) | np.isin(held, earlier, invert=True)] for earlier, held in pairs)
