"""Attention sinks and a window of recent tokens (StreamingLLM, arXiv:2309.17453)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .base import Policy, option
from .head import Head
from .types import Scores


@dataclass(frozen=True)
class Sink(Policy):
    """Keep the first positions, then the newest.

    score(c) = pos[c]; the sinks themselves are protected cells.
    """

    name = "sink"
    paper = "StreamingLLM, arXiv:2309.17453"
    summary = "keep the first tokens and the newest"
    native_base = 0

    n_sink: int | None = option(None, "protected first positions; default: the runtime's", minimum=0)

    def score(self, head: Head) -> Scores:
        return head.positions.astype(np.float64)
