"""A package that is imported later is not imported when pytest collects the file that names it."""

from __future__ import annotations

import ctypes
import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
from imported_later import imported_later

N_THREADS = "scipy_openblas_get_num_threads64_"


def test_it_is_imported_at_its_first_use(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    later = imported_later("colorsys")
    assert inspect.unwrap(later) is later  # pytest asks so for fixtures that are wrapped
    assert getattr(later, "_mock_name", None) is None
    assert "colorsys" not in sys.modules
    assert later.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert "colorsys" in sys.modules


def test_numpy_is_imported_with_one_thread_for_products():
    """A module that imports it before tests/conftest.py says so would have two threads wait for each other."""
    libraries = map(ctypes.CDLL, map(str, Path(np.__file__).parents[1].glob("numpy.libs/*openblas*")))
    numbers = [n_threads() for blas in libraries if (n_threads := getattr(blas, N_THREADS, None))]
    if not numbers:
        pytest.skip("this numpy has no OpenBLAS of its own, or an older one")
    assert numbers == [1]
