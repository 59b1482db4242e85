"""Numbers of lists in a DOCX, as Word counts them."""

from __future__ import annotations

import pytest
from document_files import converted, write_docx

LEVEL = '<w:lvl w:ilvl="{}"><w:start w:val="{}"/><w:numFmt w:val="{}"/><w:lvlText w:val="{}"/></w:lvl>'
SHARED = '<w:abstractNum w:abstractNumId="{}">{}</w:abstractNum>'
LIST = '<w:num w:numId="{}"><w:abstractNumId w:val="{}"/>{}</w:num>'
ANEW = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="{}"/></w:lvlOverride>'


@pytest.fixture
def marks(tmp_path):
    """A function that returns the marks of items: (list, level), or the id of a style, perhaps with a level."""

    def read(items, numbering="", styles=""):
        body = ""
        for item in items:
            if isinstance(item, str):
                style, _, level = item.partition(":")
                properties = f'<w:pStyle w:val="{style}"/>'
                properties += f'<w:numPr><w:ilvl w:val="{level}"/></w:numPr>' if level else ""
            else:
                properties = f'<w:numPr><w:ilvl w:val="{item[1]}"/><w:numId w:val="{item[0]}"/></w:numPr>'
            body += f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>x</w:t></w:r></w:p>"
        path = write_docx(tmp_path / "a.docx", body, numbering=numbering, styles=styles)
        return [it.removesuffix("x") for it in converted(path)[0].strip("\n").split("\n\n")]

    return read


def test_levels_count_by_themselves_and_begin_anew(marks):
    levels = LEVEL.format(0, 1, "decimal", "%1.") + LEVEL.format(1, 1, "lowerLetter", "%1.%2)")
    numbering = SHARED.format(5, levels) + LIST.format(1, 5, "")
    items = [(1, 0), (1, 1), (1, 1), (1, 0), (1, 1)]
    assert marks(items, numbering) == ["1. ", "  1.a) ", "  1.b) ", "2. ", "  2.a) "]


def test_lists_go_on_unless_they_say_that_they_begin_anew(marks):
    numbering = SHARED.format(5, LEVEL.format(0, 3, "upperRoman", "%1")) + LIST.format(1, 5, "")
    numbering += LIST.format(2, 5, "") + LIST.format(3, 5, ANEW.format(1))
    assert marks([(1, 0), (2, 0), (3, 0), (3, 0)], numbering) == ["III ", "IV ", "I ", "II "]


def test_items_without_numbers(marks):
    numbering = SHARED.format(5, LEVEL.format(0, 1, "bullet", "o")) + LIST.format(1, 5, "")
    numbering += SHARED.format(6, LEVEL.format(0, 1, "none", "")) + LIST.format(2, 6, "")
    assert marks([(1, 0), (2, 0), (0, 0)], numbering) == ["- ", "", ""]


def test_a_list_that_is_not_described_is_numbered(marks):
    assert marks([(9, 0), (9, 0), (9, 4)]) == ["1. ", "2. ", "        1. "]


def test_a_style_may_have_a_list_and_be_a_heading(marks):
    numbering = SHARED.format(5, LEVEL.format(0, 1, "decimal", "%1")) + LIST.format(1, 5, "")
    numbered = '<w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr>'
    styles = f'<w:style w:styleId="H"><w:name w:val="heading 2"/>{numbered}</w:style>'
    assert marks(["H", "H"], numbering, styles) == ["## 1 ", "## 2 "]


def test_a_paragraph_may_name_a_level_of_its_style_s_list(marks):
    numbering = SHARED.format(5, LEVEL.format(0, 1, "decimal", "%1") + LEVEL.format(1, 1, "decimal", "%1.%2"))
    numbering += LIST.format(1, 5, "")
    styles = '<w:style w:styleId="S"><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
    assert marks(["S", "S:1", "S:1"], numbering, styles) == ["1 ", "  1.1 ", "  1.2 "]
