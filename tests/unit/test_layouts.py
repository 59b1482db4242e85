"""Each layout of a document becomes the text that docs/design/document-layouts.md says; what is left out is named."""

from __future__ import annotations

from pathlib import Path

import layouts
import pytest
from document_files import converted

CASES = [(it, format_) for it in layouts.LAYOUTS for format_ in layouts.FORMATS if format_ in it.sources]
DOCS = Path(__file__).parents[2] / "docs" / "design" / "document-layouts.md"


@pytest.mark.parametrize(("layout", "format_"), CASES, ids=[f"{it.name}-{format_}" for it, format_ in CASES])
def test_a_layout_becomes_its_text(layout, format_, tmp_path):
    for path in layouts.write(layout, format_, tmp_path):
        text, report = converted(path)
        assert text.removeprefix("[page 1]\n").strip("\n") == layouts.text_of(layout, format_)
        assert bool(report.left_out) == bool(layout.left_out)
        assert layout.left_out in ", ".join(f"{what} ({n} characters)" for what, n in report.left_out.items())


def test_the_docs_have_the_same_table():
    written = DOCS.read_text("utf-8")
    assert "\n".join(row for it in layouts.LAYOUTS for row in layouts.rows(it)) in written
