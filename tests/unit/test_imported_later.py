"""A package that is imported later is not imported when pytest collects the file that names it."""

from __future__ import annotations

import inspect
import sys

from imported_later import imported_later


def test_it_is_imported_at_its_first_use(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    later = imported_later("colorsys")
    assert inspect.unwrap(later) is later  # pytest asks so for fixtures that are wrapped
    assert getattr(later, "_mock_name", None) is None
    assert "colorsys" not in sys.modules
    assert later.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert "colorsys" in sys.modules
