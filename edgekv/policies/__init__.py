"""Eviction policies: options, float64 reference formulas, and the door to the native ones.

A policy scores the cells of one (layer, KV head); selection is the same for all (`select.cells_to_keep`).
"""

from __future__ import annotations

from .arrays import score, select
from .base import Policy
from .keydiff import KeyDiff
from .random import Random
from .sink import Sink
from .spec import POLICIES, parse_policy

__all__ = ["POLICIES", "KeyDiff", "Policy", "Random", "Sink", "parse_policy", "score", "select"]
