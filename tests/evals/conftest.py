"""Shared fixtures of the evaluation tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def text(tmp_path):
    """Path of a short text with two facts: the sea was blue, and nobody came."""
    path = tmp_path / "text.txt"
    path.write_text("The sea was blue, and nobody came. The old house stood empty that year. " * 6)
    return path
