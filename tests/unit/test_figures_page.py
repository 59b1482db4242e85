"""The page of figures lists every field and property of what it describes, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import edgekv

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [edgekv.Stats, edgekv.Progress, edgekv.Plan], ids=lambda kind: kind.__name__)
def test_a_table_has_every_field(kind):
    section = PAGE.partition(f"## {kind.__name__}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    properties = {name for name, it in vars(kind).items() if isinstance(it, property)}
    assert sorted(listed) == sorted({it.name for it in fields(kind)} | properties)
