"""Every policy on plain arrays: the native version equals the float64 reference, and both keep the rules."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgekv import BudgetError, ConfigError, NativeError, PolicyError, _native
from edgekv.policies import parse_policy, score, select
from edgekv.policies.arrays import native_rows
from edgekv.policies.base import POOLS
from edgekv.policies.keydiff import ANCHORS, METRICS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference_quant import rotate

KEYDIFFS = [f"anchor={a}, metric={m}" for a, m in itertools.product(ANCHORS, METRICS) if (a, m[:3]) != ("pairwise", m[:3])]
