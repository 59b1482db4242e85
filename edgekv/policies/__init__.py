"""Eviction policies: options, float64 reference formulas, and the door to the native ones.

A policy scores the cells of one (layer, KV head) and keeps the best; wrappers change the score or the choice.
"""

from __future__ import annotations

from .ahakv import AhaKV
from .arrays import score, select
from .base import Policy
from .caote import Caote, FastCaote
from .critical import Critical
from .h2o import H2O
from .head import Head
from .keydiff import KeyDiff
from .l2norm import L2Norm
from .random import Random
from .sink import Sink
from .snapkv import SnapKV
from .spec import POLICIES, WRAPPERS, parse_policy
from .tova import Tova

__all__ = [
    "POLICIES",
    "WRAPPERS",
    "AhaKV",
    "Caote",
    "Critical",
    "FastCaote",
    "H2O",
    "Head",
    "KeyDiff",
    "L2Norm",
    "Policy",
    "Random",
    "Sink",
    "SnapKV",
    "Tova",
    "parse_policy",
    "score",
    "select",
]
