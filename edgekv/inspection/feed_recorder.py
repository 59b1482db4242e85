"""Copies of the tokens that are fed, and of the keys of a few heads before any of them is evicted."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.cells.block_loop import BlockLoop
from edgekv.errors import InputError
from edgekv.memory.raw_files import read_all, write_all
from edgekv.scoring.kernels import numbers_of

Head = tuple[int, int]  # layer, KV head


class FeedRecorder:
    """Tokens that a block loop has fed since `recording` began, and the key of each in every noted head.

    The keys lie in temporary files, which are gone with the recorder, or when the process ends.
    """

    def __init__(self, block_loop: BlockLoop, heads: Sequence[Head]) -> None:
        """Raise InputError if the disk is full, as `note` and `keys` do."""
        self.tokens: list[int] = []
        self._cache = block_loop.cache
        self._formats = {head: self._cache.row_format(head[0]) for head in heads}
        files = ExitStack()
        weakref.finalize(self, files.close)
        with _on_the_disk():
            self._files: dict[Head, Any] = {
                head: files.enter_context(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
                for head in heads
            }

    def note(self, tokens: Sequence[int]) -> None:
        """Note tokens that were just fed, and their keys, which lie last in every head."""
        self.tokens += tokens
        for head, file in self._files.items():
            rows, _ = self._cache.rows(*head)
            with _on_the_disk():
                write_all(file, rows[-len(tokens) :].reshape(-1).data)

    def keys(self, head: Head) -> npt.NDArray[np.floating]:
        """Return the keys of one noted head, (n, head_dim), by position."""
        file = self._files[head]
        with _on_the_disk():
            rows = np.empty((len(self.tokens), file.seek(0, os.SEEK_END) // len(self.tokens)), dtype=np.uint8)
            file.seek(0)
            read_all(file, rows.reshape(-1).data)
        return numbers_of(rows, self._formats[head])


@contextmanager
def recording(block_loop: BlockLoop, heads: Sequence[Head]) -> Iterator[FeedRecorder]:
    """Yield a recorder, which notes every feed until the block is left."""
    recorder = FeedRecorder(block_loop, heads)
    block_loop.watch = recorder.note
    try:
        yield recorder
    finally:
        block_loop.watch = None


@contextmanager
def _on_the_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"keys cannot be noted in {tempfile.gettempdir()}: {error.strerror or error}; make room there, name "
            "another folder in TMPDIR, or give keys=False"
        ) from error
