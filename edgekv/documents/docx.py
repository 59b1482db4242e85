"""DOCX as text: paragraphs, headings, lists, tables and notes, read as a stream."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

from .archive import Archive
from .docx_styles import Item, Lists, Style, is_on, styles_of, whole
from .formula import Formula
from .report import DELETED, HIDDEN, STRUCK, DocumentError, Report
from .scripts import LOWERED, RAISED
from .text_writer import LINE, PARAGRAPH, TextWriter
from .xml import Attributes, elements, parse

MARK = "[Content_Types].xml"
_ASIDES = {"footnote": "note", "endnote": "endnote", "comment": "comment"}
_MARGINS = {"hdr": "header", "ftr": "footer"}

# second forms of a drawing, and text that was moved away; elements that end with Change have former formats
_SKIPPED = frozenset({"Fallback", "moveFrom"})
_WRITTEN = {"tab": "\t", "ptab": "\t", "noBreakHyphen": "-"}  # elements that stand for characters
_SCRIPTS = {"superscript": RAISED, "subscript": LOWERED}
_LEFT_OUT = {"strike": STRUCK, "dstrike": STRUCK, "vanish": HIDDEN}

_SYMBOLS = {  # characters for pictures of fonts, by their codes without the font's own page
    "wingdings": {0xFC: "\u2713", 0xFB: "\u2717", 0xFE: "\u2611", 0xFD: "\u2612", 0xA8: "\u2610", 0xE0: "\u2192"},
    "symbol": {0xB0: "\u00b0", 0xB1: "\u00b1", 0xA3: "\u2264", 0xB3: "\u2265", 0x6D: "\u00b5", 0xB4: "\u00d7"},
}
_UNKNOWN = "\u25a1"  # stands for a symbol that is not known


class _Body:
    """Text of one part of a document, which is fed element by element."""

    def __init__(self, styles: dict[str, Style], lists: Lists, report: Report) -> None:
        self._styles, self._lists, self._report = styles, lists, report
        self._writer = TextWriter()
        self._skipped = self._deleted = 0  # open elements
        self._in_text = False
        self._run: Style | None = None  # the open run
        self._around: list[Style | None] = []  # runs that have text boxes in them
        self._paragraph, self._item = Style(), Item()
        self._mark = ""  # stands before the first text of a note or a header
        self._is_ticked = False
        self._formula: Formula | None = None
        self._n_pages = 1

    def take(self) -> str:
        """Return the text since the last call."""
        return self._writer.take()

    def finish(self) -> str:
        """End the text, and return what is left of it."""
        self._writer.finish()
        return self._writer.take()

    def start(self, tag: str, given: Attributes) -> None:
        """Begin an element."""
        if self._skipped or tag in _SKIPPED or tag.endswith("Change"):
            self._skipped += 1
        elif tag in ("t", "delText"):
            self._in_text = True
        elif self._formula is not None:
            self._formula.start(tag, given.get("val", ""))
        elif tag == "oMath":
            self._formula = Formula()
        elif tag == "del":
            self._deleted += 1
        elif tag == "txbxContent":
            self._around.append(self._run)
            self._run = None
        elif self._run is not None:
            self._start_in_run(self._run, tag, given)
        elif tag == "r":
            self._run = Style(traits={**self._paragraph.traits})
        elif tag in _ASIDES and given.get("type", "normal") == "normal":
            author = f"{given['author']}: " if given.get("author") else ""
            self._mark = f"[{_ASIDES[tag]} {given.get('id')}] {author}"
        elif tag in _MARGINS:
            self._mark = f"[{_MARGINS[tag]}] "
        else:
            self._start_paragraph(tag, given)
            self._start_table(tag, given)

    def _start_in_run(self, run: Style, tag: str, given: Attributes) -> None:
        aside = _ASIDES.get(tag.removesuffix("Reference")) if tag.endswith("Reference") else None
        if tag == "rStyle":
            run.traits |= self._style(given).traits
        elif tag in _LEFT_OUT or tag == "vertAlign":
            run.traits[tag] = is_on(given)
        elif tag == "lastRenderedPageBreak":
            self._n_pages += 1
            self._writer.put(f"[page {self._n_pages}] ")
        elif aside is not None:
            self._writer.put(f"[{aside} {given.get('id')}]")
        elif tag in ("br", "cr"):
            self._writer.gap(LINE)
        elif tag in _WRITTEN:
            self._add(_WRITTEN[tag])
        elif tag == "sym":
            self._add(_symbol(given))
        elif tag in ("default", "checked"):  # a field that can be ticked has them
            self._is_ticked = bool(is_on(given))

    def _start_paragraph(self, tag: str, given: Attributes) -> None:
        if tag == "p":
            self._paragraph, self._item = Style(), Item()
            self._writer.prefix("")
        elif tag == "pStyle":
            self._paragraph = self._style(given)
            self._item = self._paragraph.item
        elif tag == "numPr":
            self._item = replace(self._item, is_item=True)
        elif tag == "ilvl":
            self._item.level = whole(given)
        elif tag == "numId":
            self._item.of_list = given.get("val", "")

    def _start_table(self, tag: str, given: Attributes) -> None:
        writer = self._writer
        if tag == "tbl":
            writer.begin_table()
        elif tag == "tr":
            writer.begin_row()
        elif tag in ("tc", "gridBefore"):
            writer.begin_cell()
            writer.widen_cell(whole(given, 1))
        elif tag == "gridSpan":
            writer.widen_cell(whole(given, 1))

    def end(self, tag: str) -> None:
        """End an element."""
        self._in_text = False
        if self._skipped:
            self._skipped -= 1
        elif tag == "oMath" and self._formula is not None:
            formula, self._formula = self._formula, None
            self._add(formula.line())
        elif self._formula is not None:
            self._formula.end(tag)
        elif tag == "del":
            self._deleted -= 1
        elif tag == "txbxContent":
            self._run = self._around.pop()
        elif tag == "r":
            self._run = None
        elif tag == "pPr":
            level = self._paragraph.level
            self._writer.prefix("#" * level + " " * bool(level) + self._lists.mark(self._item))
        elif tag == "p":
            self._writer.gap(PARAGRAPH)
        elif tag == "tbl":
            self._writer.end_table()
        elif tag == "checkBox":
            self._add("[x]" if self._is_ticked else "[ ]")

    def text(self, data: str) -> None:
        """Add text."""
        if not self._in_text:
            return
        traits = self._run.traits if self._run is not None else {}
        reason = DELETED if self._deleted else next((why for it, why in _LEFT_OUT.items() if traits.get(it)), "")
        if reason:
            self._report.leave_out(reason, data)
        elif self._formula is not None:
            self._formula.text(data)
        else:
            self._add(data)

    def _add(self, text: str) -> None:
        mark, self._mark = self._mark, ""
        self._writer.put(mark)
        script = _SCRIPTS.get(self._run.traits.get("vertAlign", "")) if self._run is not None else None
        if script is None:
            self._writer.put(text)
        else:
            self._writer.begin_script(script)
            self._writer.put(text)
            self._writer.end_script()

    def _style(self, given: Attributes) -> Style:
        return self._styles.get(given.get("val", ""), Style())


def text_of(archive: Archive, report: Report) -> Iterator[str]:
    """Yield the text of the document, then its notes and comments, then its headers and footers."""
    main = _main_part(archive)
    folder = posixpath.dirname(main)
    styles = styles_of(archive, posixpath.join(folder, "styles.xml"))
    lists = Lists(archive, posixpath.join(folder, "numbering.xml"))

    def pieces(name: str) -> Iterator[str]:
        with archive.member(name) as part:
            yield from _text_of_part(part, _Body(styles, lists, report))

    for name in (main, *(posixpath.join(folder, f"{aside}s.xml") for aside in _ASIDES)):
        if name == main or name in archive:
            yield from pieces(name)
    for margin in _MARGINS.values():
        names = re.compile(rf"{re.escape(folder)}/{margin}\d*\.xml")
        yield from dict.fromkeys("".join(pieces(name)) for name in archive if names.fullmatch(name))  # pages share them


def _text_of_part(part: BinaryIO, body: _Body) -> Iterator[str]:
    has_text = False
    for _ in parse(part, start=body.start, end=body.end, text=body.text):
        piece = body.take()
        has_text = has_text or bool(piece)
        yield piece
    rest = body.finish()
    yield rest + "\n\n" * (has_text or bool(rest))


def _symbol(given: Attributes) -> str:
    """Return the character of a symbol, which is given by a font and its code there."""
    font, code = given.get("font", "").casefold(), given.get("char", "")
    at = int(code, 16) & 0xFF if re.fullmatch("[0-9A-Fa-f]{1,4}", code) else -1
    return _SYMBOLS.get(font, {}).get(at, _UNKNOWN)


def _main_part(archive: Archive) -> str:
    with archive.member("_rels/.rels") as stream:
        for tag, given in elements(stream):
            if tag == "Relationship" and given.get("Type", "").endswith("/officeDocument"):
                name = given.get("Target", "").lstrip("/")
                if posixpath.dirname(name) == "word":
                    return name
    raise DocumentError("is a file of Office, but not a text of Word; save it as .docx or PDF")
