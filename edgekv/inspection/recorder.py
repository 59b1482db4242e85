"""Copies what was fed: the tokens, and the keys of a few heads before any of them is evicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from edgekv.engine.controller import Controller
from edgekv.extras import needed
from edgekv.options import KV_TYPES

Head = tuple[int, int]  # layer, KV head


class Recorder:
    """What a controller has fed since `recording` began: 8 bytes a token, and its key in every noted head."""

    def __init__(self, controller: Controller, heads: Sequence[Head], kv_type: str) -> None:
        """Raises ConfigError where keys of a quantised cache are to be noted and gguf is not installed."""
        self.tokens: list[int] = []
        self._cache = controller.cache
        self._rows: dict[Head, list[npt.NDArray[np.uint8]]] = {head: [] for head in heads}
        self._kv_type = kv_type
        self._gguf = needed("gguf", "make") if heads and kv_type != "f16" else None

    def note(self, tokens: Sequence[int]) -> None:
        """Note tokens that were just fed, and their keys, which lie last in every head."""
        self.tokens += tokens
        for head, blocks in self._rows.items():
            rows, _ = self._cache.rows(*head)
            blocks.append(rows[-len(tokens) :].copy())

    def keys(self, head: Head) -> npt.NDArray[np.floating]:
        """The keys of one noted head, (n, head_dim), by position.

        Quantised caches rotate every key by the same orthogonal matrix, which is left in: no distance, angle or volume
        changes with it.
        """
        rows = np.concatenate(self._rows[head])
        if self._gguf is None:
            return rows.view(np.float16)
        kind = self._gguf.GGMLQuantizationType(KV_TYPES[self._kv_type])
        return np.asarray(self._gguf.quants.dequantize(rows, kind))


@contextmanager
def recording(controller: Controller, heads: Sequence[Head], kv_type: str) -> Iterator[Recorder]:
    """A recorder that is told of every feed while this lasts."""
    recorder = Recorder(controller, heads, kv_type)
    controller.watch = recorder.note
    try:
        yield recorder
    finally:
        controller.watch = None
