"""Memory that goes back to the system as soon as it is freed."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import numpy.typing as npt


def new_pages(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Return an array of zeros in pages of its own. An allocator would keep the pages of a freed array, or leave holes.

    Raises MemoryError.
    """
    size = max(1, n_bytes)
    try:
        if sys.platform == "win32":
            pages = mmap.mmap(-1, size)
        else:
            pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{n_bytes} bytes cannot be had: {error}") from error
    return np.frombuffer(pages, dtype=np.uint8)[:n_bytes]
