"""Random eviction: the control that every policy must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import Pooled, option
from .head import Head
from .types import Scores


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser on uint64 arrays."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


@dataclass(frozen=True)
class Random(Pooled):
    """Keep cells by a seeded uniform number.

    score(c) = hash(seed, layer, head, pos[c]) in [0, 1), with 24 bits. A token has the same number in every compaction.
    So after any number of compactions, every token read so far was equally likely to be kept.
    """

    name = "random"
    paper = "control"
    summary = "keep cells by a seeded uniform number"
    native_base = 1

    seed: int = option(0, "seed of the numbers", minimum=0, maximum=2**64 - 1)

    def score(self, head: Head) -> Scores:
        stream = mix(np.array([self.seed ^ (head.layer << 32 | head.head)], dtype=np.uint64))
        uniform = (mix(stream ^ head.positions.astype(np.uint64)) >> np.uint64(40)).astype(np.float64) * 2.0**-24
        return self.pooled(uniform, head.positions)

    def native_fields(self) -> dict[str, Any]:
        return super().native_fields() | {"seed": self.seed}
