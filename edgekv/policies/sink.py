"""Attention sinks and a window of recent tokens (StreamingLLM, arXiv:2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._arrays import Cells, Keys, Scores
from .base import Policy, option


@dataclass(frozen=True)
class Sink(Policy):
    """Keep the first positions, then the newest.

    score(c) = pos[c]; the sinks themselves are protected cells.
    """

    name = "sink"
    paper = "StreamingLLM, arXiv:2309.17453"
    native_base = 0

    n_sink: int | None = option(None, "protected first positions; default: the runtime's", minimum=0)

    def score(self, keys: Keys, positions: Cells, *, layer: int = 0, head: int = 0) -> Scores:
        return positions.astype(np.float64)
