"""Layouts that documents have, each in every format that has it, and the text that comes of it.

docs/design/document-layouts.md shows the same table; a tab is an arrow there, and the end of a line is ¶.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from document_files import hebrew_page, paragraph, pdf_page, placed, run, write_docx, write_epub

HTML, DOCX, PDF = "HTML, EPUB", "DOCX", "PDF"
FORMATS = (HTML, DOCX, PDF)


class Layout(NamedTuple):
    """A layout. text: what comes of it, or is part of it; left_out: what a message says is not in it

    sources: by format: the body of a page, that of a document, or a PDF; parts: further parts of a DOCX
    texts: texts that differ, by format
    """

    name: str
    text: str
    sources: dict
    parts: Mapping = MappingProxyType({})
    texts: Mapping = MappingProxyType({})
    left_out: str = ""


def _raised(text):
    return run(text, '<w:vertAlign w:val="superscript"/>')


def _lowered(text):
    return run(text, '<w:vertAlign w:val="subscript"/>')


def _p(*runs, properties=""):
    return f"<w:p><w:pPr>{properties}</w:pPr>{''.join(runs)}</w:p>"


def _table(*rows):
    """Return a table of a DOCX: cells are texts, XML, or pairs of properties and texts."""
    made = ""
    for row in rows:
        made += "<w:tr>"
        for cell in row:
            properties, text = cell if isinstance(cell, tuple) else ("", cell)
            inner = text if text.startswith("<w:") else _p(run(text)) if text else _p()
            made += f"<w:tc><w:tcPr>{properties}</w:tcPr>{inner}</w:tc>"
        made += "</w:tr>"
    return f"<w:tbl>{made}</w:tbl>"


def _item(text, of_list=1, level=0):
    numbers = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{of_list}"/></w:numPr>'
    return _p(run(text), properties=numbers)


MATH = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
NUMBERING = (
    '<w:abstractNum w:abstractNumId="5"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
    '<w:lvlText w:val="%1."/></w:lvl><w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="lowerLetter"/>'
    '<w:lvlText w:val="%1%2)"/></w:lvl></w:abstractNum>'
    '<w:abstractNum w:abstractNumId="6"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/><w:lvlText w:val="o"/></w:lvl>'
    "</w:abstractNum>"
    '<w:num w:numId="1"><w:abstractNumId w:val="5"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="6"/></w:num>'
)

LAYOUTS = [
    Layout(
        "raised number",
        "10^6 fish",
        {
            HTML: "10<sup>6</sup> fish",
            DOCX: _p(run("10"), _raised("6"), run(" fish")),
            PDF: pdf_page(placed(("10", 60, 700), ("6", 72.3, 704, 7), ("fish", 79, 700))),
        },
    ),
    Layout(
        "raised number in full size",
        "10^6 fish",
        {PDF: pdf_page(placed(("10", 60, 700), ("6", 72.3, 705), ("fish", 81, 700)))},
    ),
    Layout(
        "small text beside a line",
        "Total of all that we hold\t417",
        {PDF: pdf_page(placed(("Total", 60, 700), ("of all that we hold", 86, 704, 7), ("417", 300, 700)))},
    ),
    Layout(
        "mark of a note",
        "25^1 pounds",
        {
            HTML: "25<sup>1</sup> pounds",
            DOCX: _p(run("25"), _raised("1"), run(" pounds")),
            PDF: pdf_page(placed(("25", 60, 700), ("1", 72.3, 704, 7), ("pounds", 79, 700))),
        },
    ),
    Layout(
        "ordinal",
        "the 1st of May",
        {
            HTML: "the 1<sup>st</sup> of May",
            DOCX: _p(run("the 1"), _raised("st"), run(" of May")),
            PDF: pdf_page(placed(("the 1", 60, 700), ("st", 84.5, 704, 7), ("of May", 93, 700))),
        },
    ),
    Layout(
        "lowered number",
        "H2O",
        {
            HTML: "H<sub>2</sub>O",
            DOCX: _p(run("H"), _lowered("2"), run("O")),
            PDF: pdf_page(placed(("H", 60, 700), ("2", 68, 698, 7), ("O", 72, 700))),
        },
    ),
    Layout(
        "lowered after a digit",
        "101_2 is five",
        {
            HTML: "101<sub>2</sub> is five",
            DOCX: _p(run("101"), _lowered("2"), run(" is five")),
            PDF: pdf_page(placed(("101", 60, 700), ("2", 78.4, 698, 7), ("is five", 86, 700))),
        },
    ),
    Layout(
        "stacked fraction",
        "3 1/2 miles",
        {
            HTML: "3<sup>1</sup>/<sub>2</sub> miles",
            DOCX: _p(run("3"), _raised("1"), run("/"), _lowered("2"), run(" miles")),
            PDF: pdf_page(placed(("3", 60, 700), ("1", 66.5, 705, 6), ("2", 66.5, 698, 6), ("miles", 73, 700))),
        },
    ),
    Layout(
        "formula",
        "x = 3/4 + 10^(n+1)",
        {
            HTML: "<math><mi>x</mi><mo> = </mo><mfrac><mn>3</mn><mn>4</mn></mfrac><mo> + </mo><msup><mn>10</mn><mrow>"
            "<mi>n</mi><mo>+</mo><mn>1</mn></mrow></msup><annotation>10^{n+1}</annotation></math>",
            DOCX: f"<w:p><m:oMath {MATH}><m:r><m:t>x = </m:t></m:r><m:f><m:num><m:r><m:t>3</m:t></m:r></m:num><m:den>"
            "<m:r><m:t>4</m:t></m:r></m:den></m:f><m:r><m:t> + </m:t></m:r><m:sSup><m:e><m:r><m:t>10</m:t></m:r></m:e>"
            "<m:sup><m:r><m:t>n+1</m:t></m:r></m:sup></m:sSup></m:oMath></w:p>",
        },
        texts={HTML: "x=3/4+10^(n+1)"},
    ),
    Layout(
        "struck-out text",
        "a fee of 80 coins",
        {
            HTML: "a fee of <s>100</s> 80 coins",
            DOCX: _p(run("a fee of "), run("100", "<w:strike/>"), run("80 coins")),
            PDF: pdf_page(
                placed(("a fee of 100", 40, 700), ("80 coins", 104, 700)),
                [
                    "<< /Type /Annot /Subtype /StrikeOut /Rect [80 698 99 711] "
                    "/QuadPoints [80 711 99 711 80 698 99 698] >>"
                ],
            ),
        },
        left_out="struck-out text (3 characters)",
    ),
    Layout(
        "deleted and inserted text",
        "a fee of 80 coins",
        {
            HTML: "a fee of <del>100</del><ins>80</ins> coins",
            DOCX: _p(
                run("a fee of "),
                "<w:del><w:r><w:delText>100</w:delText></w:r></w:del><w:ins>",
                run("80"),
                "</w:ins>",
                run(" coins"),
            ),
        },
        left_out="(3 characters)",
    ),
    Layout(
        "table, with paragraphs in its cells",
        "Room\tKey\nAttic, east\t417",
        {
            HTML: "<table><tr><th><p>Room</p></th><th><p>Key</p></th></tr><tr><td><p>Attic,</p><p>east</p></td>"
            "<td><p>417</p></td></tr></table>",
            DOCX: _table(("Room", "Key"), (_p(run("Attic,")) + _p(run("east")), "417")),
            PDF: pdf_page(placed(("Room", 60, 700), ("Key", 200, 700), ("Attic, east", 60, 684), ("417", 200, 684))),
        },
    ),
    Layout(
        "empty cells",
        "Item\tMass\tPrice\nRope\t\t982\nLamp\t3\t55",
        {
            HTML: "<table><tr><th>Item<th>Mass<th>Price<tr><td>Rope<td><td>982<tr><td>Lamp<td>3<td>55</table>",
            DOCX: _table(("Item", "Mass", "Price"), ("Rope", "", "982"), ("Lamp", "3", "55")),
            PDF: pdf_page(
                placed(
                    *(("Item", 60, 700), ("Mass", 200, 700), ("Price", 340, 700), ("Rope", 60, 684)),
                    *(("982", 340, 684), ("Lamp", 60, 668), ("3", 200, 668), ("55", 340, 668)),
                )
            ),
        },
    ),
    Layout(
        "cells over several rows and columns",
        "Region\tCity\tMon\tTue\nNorth\tArle\t1\t2\n\tBrede\t3\t4\nall\t\t\t9",
        {
            HTML: "<table><tr><th>Region<th>City<th>Mon<th>Tue<tr><td rowspan=2>North<td>Arle<td>1<td>2"
            "<tr><td>Brede<td>3<td>4<tr><td colspan=3>all<td>9</table>",
            DOCX: _table(
                ("Region", "City", "Mon", "Tue"),
                (('<w:vMerge w:val="restart"/>', "North"), "Arle", "1", "2"),
                (("<w:vMerge/>", ""), "Brede", "3", "4"),
                (('<w:gridSpan w:val="3"/>', "all"), "9"),
            ),
            PDF: pdf_page(
                placed(
                    *(("Region", 60, 700), ("City", 160, 700), ("Mon", 260, 700), ("Tue", 360, 700)),
                    *(("North", 60, 684), ("Arle", 160, 684), ("1", 260, 684), ("2", 360, 684)),
                    *(("Brede", 160, 668), ("3", 260, 668), ("4", 360, 668), ("all", 60, 652), ("9", 360, 652)),
                )
            ),
        },
    ),
    Layout(
        "table in a cell",
        "Box\tHolds\tMass\nred\nkey\t417\n\t\t9",
        {
            HTML: "<table><tr><td>Box<td>Holds<td>Mass<tr><td>red<td><table><tr><td>key<td>417</table><td>9</table>",
            DOCX: _table(("Box", "Holds", "Mass"), ("red", _table(("key", "417")) + _p(), "9")),
        },
    ),
    Layout(
        "numbered list",
        "1. Boil\n2. Salt\n  2a) Stir\n3. Serve",
        {
            HTML: "<ol><li>Boil<li>Salt<ol type=a><li>Stir</ol><li>Serve</ol>",
            DOCX: _item("Boil") + _item("Salt") + _item("Stir", level=1) + _item("Serve"),
            PDF: pdf_page(placed(("1. Boil", 60, 700), ("2. Salt", 60, 684), ("3. Serve", 60, 668))),
        },
        parts={"numbering": NUMBERING},
        texts={
            HTML: "1. Boil\n2. Salt\n  a. Stir\n3. Serve",
            DOCX: "1. Boil\n\n2. Salt\n\n  2a) Stir\n\n3. Serve",
            PDF: "1. Boil\n2. Salt\n3. Serve",
        },
    ),
    Layout(
        "list without numbers",
        "- Boil",
        {HTML: "<ul><li>Boil</ul>", DOCX: _item("Boil", of_list=2)},
        parts={"numbering": NUMBERING},
    ),
    Layout(
        "filled form",
        "Name:\tAda 417",
        {
            HTML: "Name: <input value='Ada 417'> <input type=checkbox checked> Yes",
            DOCX: _p(
                run("Name: "),
                "<w:sdt><w:sdtContent>",
                run("Ada 417"),
                "</w:sdtContent></w:sdt><w:r><w:fldChar><w:ffData><w:checkBox>"
                '<w:default w:val="0"/><w:checked/></w:checkBox></w:ffData></w:fldChar></w:r>',
                run(" Yes"),
            ),
            PDF: pdf_page(
                placed(("Name:", 60, 695), ("Yes", 75, 660)),
                [
                    "<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /V (Ada 417) /Rect [150 690 400 710] /F 4 >>",
                    "<< /Type /Annot /Subtype /Widget /FT /Btn /T (b) /V /On /AS /On /Rect [60 658 72 670] /F 4 "
                    "/AP << /N << /On 5 0 R /Off 5 0 R >> >> >>",
                    "<< /Type /Annot /Subtype /Widget /FT /Tx /Ff 8192 /T (p) /V (secret) /Rect [150 650 400 670] >>",
                ],
                fields="6 0 R 7 0 R 8 0 R",
            ),
        },
        texts={HTML: "Name: Ada 417 [x] Yes", DOCX: "Name: Ada 417[x] Yes", PDF: "Name:\tAda 417\n[x] Yes"},
    ),
    Layout(
        "text typed on the page, and comments",
        "Body\ttyped 417\n[comment] look 982",
        {
            DOCX: _p(run("Body"), '<w:r><w:commentReference w:id="0"/></w:r>'),
            PDF: pdf_page(
                placed(("Body", 60, 695)),
                [
                    "<< /Type /Annot /Subtype /FreeText /Contents (typed 417) /Rect [150 690 400 710] >>",
                    "<< /Type /Annot /Subtype /Text /Contents (look 982) /Rect [10 690 30 710] >>",
                    "<< /Type /Annot /Subtype /Text /F 2 /Contents (hidden) /Rect [10 690 30 710] >>",
                ],
            ),
        },
        parts={"comments": f'<w:comment w:id="0" w:author="Ada">{paragraph("look 982")}</w:comment>'},
        texts={DOCX: "Body[comment 0]\n\n[comment 0] Ada: look 982"},
    ),
    Layout(
        "footnote",
        "text[note 2]\n\n[note 2] a note",
        {
            HTML: 'text<a href="#n"><sup>2</sup></a>',
            DOCX: _p(run("text"), '<w:r><w:footnoteReference w:id="2"/></w:r>'),
        },
        parts={"footnotes": f'<w:footnote w:id="2">{paragraph("a note")}</w:footnote>'},
        texts={HTML: "text[2]"},
    ),
    Layout(
        "header and footer of pages",
        "Body\n\n[header] case 982\n\n[footer] page 2",
        {
            HTML: "<header>case 982</header><p>Body</p><footer>page 2</footer>",
            DOCX: _p(run("Body")),
            PDF: pdf_page(placed(("case 982", 60, 800), ("Body", 60, 700), ("page 2", 60, 40))),
        },
        parts={
            "header1": ("hdr", paragraph("case 982")),
            "header2": ("hdr", paragraph("case 982")),
            "footer1": ("ftr", paragraph("page 2")),
        },
        texts={HTML: "case 982\n\nBody\n\npage 2", PDF: "case 982\nBody\npage 2"},
    ),
    Layout(
        "columns",
        "The committee read the yearly\nreport in the long hall and\nthen, after a short rest,\n"
        "approved the money for the\ncoming year of 1417.\nNobody spoke against it.",
        {
            PDF: pdf_page(
                placed(
                    *(("The committee read the yearly", 60, 712), ("approved the money for the", 330, 712)),
                    *(("report in the long hall and", 60, 698), ("coming year of 1417.", 330, 698)),
                    *(("then, after a short rest,", 60, 684), ("Nobody spoke against it.", 330, 684)),
                )
            )
        },
    ),
    Layout(
        "columns below a line of two parts",
        "The Wizard\t17\nThe committee read the yearly report\nin the long hall.\nIt approved the money for the year.\n"
        "Nobody spoke.",
        {
            PDF: pdf_page(
                placed(
                    *(("The Wizard", 60, 740), ("17", 520, 740), ("The committee read the yearly report", 60, 712)),
                    *(("in the long hall.", 60, 698), ("It approved the money for the year.", 330, 712)),
                    ("Nobody spoke.", 330, 698),
                )
            )
        },
    ),
    Layout(
        "text from right to left",
        "\u05d0\u05d1\u05d2 \u05d3\u05d4\u05d5\t417\n\u05d3\u05d4\u05d5\u05d6\t982",
        {PDF: hebrew_page(placed(*(("fed cba", 270, 700), ("417", 100, 700), ("gfed", 281, 684), ("982", 100, 684))))},
    ),
    Layout(
        "rotated page",
        "Item\tPrice\nRope\t982",
        {
            PDF: pdf_page(
                b"q 0 1 -1 0 595 0 cm "
                + placed(("Item", 60, 300), ("Price", 200, 300), ("Rope", 60, 284), ("982", 200, 284))
                + b" Q",
                page="/Rotate 90",
            )
        },
    ),
    Layout(
        "watermark",
        "one line\nanother line\nDRAFT 2",
        {
            PDF: pdf_page(
                placed(("one line", 60, 700))
                + b" BT /F1 40 Tf 0.7 0.7 -0.7 0.7 40 640 Tm (DRAFT 2) Tj ET "
                + placed(("another line", 60, 684))
            )
        },
    ),
    Layout(
        "lines of a paragraph",
        "The stranger came early in February, one wintry day, through a biting wind and all the driving snow.\n"
        "He rang the bell.",
        {
            PDF: pdf_page(
                placed(
                    ("The stranger came early in February, one", 60, 700),
                    ("wintry day, through a biting wind and all", 60, 686),
                    ("the driving snow.", 60, 672),
                    ("He rang the bell.", 60, 658),
                )
            )
        },
    ),
    Layout(
        "hidden text",
        "in sight",
        {
            HTML: "in sight<span style='display: none'>hidden</span>",
            DOCX: _p(run("in sight"), run("hidden", "<w:vanish/>")),
        },
        left_out="hidden text (6 characters)",
    ),
]


def write(layout, format_, folder):
    """Write a layout in a format; returns the paths. One of HTML is written as EPUB, too."""
    source = layout.sources[format_]
    if format_ == PDF:
        path = folder / "a.pdf"
        path.write_bytes(source)
        return [path]
    if format_ == DOCX:
        return [write_docx(folder / "a.docx", source, **layout.parts)]
    page = folder / "a.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{source}", "utf-8")
    return [page, write_epub(folder / "a.epub", [source])]


def text_of(layout, format_):
    """Return the text that comes of a layout in a format."""
    return layout.texts.get(format_, layout.text)


def rows(layout):
    """Return the layout's rows of the table in the docs: one for each text that comes of it."""
    formats = {}
    for format_ in layout.sources:
        formats.setdefault(text_of(layout, format_), []).append(format_)
    for text, some in formats.items():
        shown = text.replace("\t", " → ").replace("\n\n", "\n").replace("\n", " ¶ ")
        yield f"| {layout.name} | {'all' if some == [*FORMATS] else ', '.join(some)} | `{shown}` |"
