"""The table of architectures: against its page, llama.cpp's source, and the families that are made for tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgekv.models.architectures import ARCHITECTURES, KINDS, find_architecture, refused_table, running_table
from edgekv.testing.models.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text()


@pytest.mark.parametrize("table", [running_table, refused_table])
def test_the_page_shows_the_table(table):
    rows = [" | ".join(row) for row in table()]
    lines = [line.removeprefix("| ").removesuffix(" |") for line in PAGE.splitlines() if line.startswith("| ")]
    start = lines.index(rows[0])
    assert lines[start : start + len(rows)] == rows


def test_the_page_has_no_other_rows():
    n_rows = len(running_table()) + len(refused_table())
    assert len([line for line in PAGE.splitlines() if line.startswith("| ")]) == n_rows


def test_every_architecture_stands_once_and_is_of_a_known_kind():
    names = [architecture.name for architecture in ARCHITECTURES]
    assert len(names) == len(set(names))
    assert {architecture.kind for architecture in ARCHITECTURES} <= KINDS.keys()


def test_every_made_family_is_in_it_and_tested():
    for make in FAMILIES.values():
        name = make().architecture
        assert name in {architecture.name for architecture in ARCHITECTURES}
        assert find_architecture(name).tested != "untested"


def test_llama_cpp_knows_every_one():
    sources = sorted(ROOT.glob("build/*/llama.cpp-src/vendor/llama.cpp/src/llama-arch.cpp"))
    if not sources:
        pytest.skip("llama.cpp's source is not here; build edgekv in this checkout")
    known = set(re.findall(r'\{\s*LLM_ARCH_\w+,\s*"([^"]+)"', sources[0].read_text()))
    assert {architecture.name for architecture in ARCHITECTURES} <= known
    assert len(known) > 100


def test_others_are_plain_and_untested():
    other = find_architecture("granite")
    assert (other.kind, other.tested, other.refused) == ("plain", "untested", "")
