"""Eviction policies: their options and their float64 reference formulas.

A policy scores the cells of one (layer, KV head) and keeps the best; wrappers change the score, the
choice, or how many cells each head and layer has. `edgekv.scoring` runs a policy on arrays.
"""

from __future__ import annotations

from .ada import Ada
from .ahakv import AhaKV
from .base import Policy
from .caote import Caote, FastCaote
from .critical import Critical
from .custom.scorer import Custom, Scorer
from .h2o import H2O
from .head import Head
from .keydiff import KeyDiff
from .l2norm import L2Norm
from .pyramid import Pyramid
from .random import Random
from .registry import POLICIES, WRAPPERS, Available, available, parse_policy, register, unregister
from .sink import Sink
from .snapkv import SnapKV
from .tova import Tova

__all__ = [
    "H2O",
    "POLICIES",
    "WRAPPERS",
    "Ada",
    "AhaKV",
    "Available",
    "Caote",
    "Critical",
    "Custom",
    "FastCaote",
    "Head",
    "KeyDiff",
    "L2Norm",
    "Policy",
    "Pyramid",
    "Random",
    "Scorer",
    "Sink",
    "SnapKV",
    "Tova",
    "available",
    "parse_policy",
    "register",
    "unregister",
]
