"""DOCX as text: paragraphs, headings, lists, tables and notes, read as a stream."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import BinaryIO

from .archive import Archive
from .report import DocumentError, Report
from .xml import Attributes, elements, parse

MARK = "[Content_Types].xml"
# second forms of a drawing, text that was moved away, and former formats of paragraphs
_SKIPPED = frozenset({"Fallback", "moveFrom", "pPrChange"})
_NOTES = {"footnote": "note", "endnote": "endnote"}
_WRITTEN = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}  # elements that stand for characters

_HEADING = re.compile("heading ([1-6])", re.IGNORECASE)
_ENDINGS = {"tc": "\t", "tr": "\n", "tbl": "\n"}


class _Body:
    """Text of one part of a document, which is fed element by element."""

    def __init__(self, headings: dict[str, int]) -> None:
        self._headings = headings
        self._pieces: list[str] = []
        self._skipped = self._runs = self._cells = 0  # open elements
        self._in_text = False
        self._has_text = False  # True = the open paragraph has some
        self._prefix = ""  # a mark of a heading or an item, for the first text of the paragraph
        self._n_pages = 1

    def take(self) -> str:
        """Return the text since the last call."""
        taken = "".join(self._pieces)
        self._pieces.clear()
        return taken

    def start(self, tag: str, given: Attributes) -> None:
        """Begin an element."""
        self._skipped += tag in _SKIPPED
        self._runs += tag == "r"
        self._cells += tag == "tc"
        self._in_text = tag == "t" and not self._skipped
        if self._skipped:
            return
        if tag == "p":
            self._prefix = ""
        elif tag == "pStyle" and given.get("val") in self._headings:
            self._prefix = "#" * self._headings[given["val"]] + " "
        elif tag == "numPr":
            self._prefix = self._prefix or "- "
        elif tag == "lastRenderedPageBreak":
            self._n_pages += 1
            self._pieces.append(f"[page {self._n_pages}] ")
        elif tag in ("footnoteReference", "endnoteReference"):
            self._pieces.append(f"[{_NOTES[tag.removesuffix('Reference')]} {given.get('id')}]")
        elif tag in _NOTES and given.get("type", "normal") == "normal":
            self._pieces.append(f"[{_NOTES[tag]} {given.get('id')}] ")
        elif self._runs and tag in _WRITTEN:
            self._pieces.append(_WRITTEN[tag])

    def end(self, tag: str) -> None:
        """End an element."""
        self._skipped -= tag in _SKIPPED
        self._runs -= tag == "r"
        self._cells -= tag == "tc"
        self._in_text = False
        if tag == "p" and self._has_text:
            self._pieces.append(" " if self._cells else "\n\n")
            self._has_text = False
        elif tag in _ENDINGS and not self._skipped:
            self._pieces.append(_ENDINGS[tag])

    def text(self, data: str) -> None:
        """Add text."""
        if self._in_text:
            self._pieces += [self._prefix, data]
            self._prefix, self._has_text = "", True


def text_of(archive: Archive, _report: Report) -> Iterator[str]:
    """Yield the text of the document, then its notes."""
    main = _main_part(archive)
    folder = posixpath.dirname(main)
    headings = _headings(archive, posixpath.join(folder, "styles.xml"))
    for name in (main, *(posixpath.join(folder, f"{notes}.xml") for notes in ("footnotes", "endnotes"))):
        if name == main or name in archive:
            with archive.member(name) as part:
                yield from _text_of_part(part, headings)


def _text_of_part(part: BinaryIO, headings: dict[str, int]) -> Iterator[str]:
    body = _Body(headings)
    for _ in parse(part, start=body.start, end=body.end, text=body.text):
        yield body.take()


def _main_part(archive: Archive) -> str:
    with archive.member("_rels/.rels") as stream:
        for tag, given in elements(stream):
            if tag == "Relationship" and given.get("Type", "").endswith("/officeDocument"):
                name = given.get("Target", "").lstrip("/")
                if posixpath.dirname(name) == "word":
                    return name
    raise DocumentError("is a file of Office, but not a text of Word; save it as .docx or PDF")


def _headings(archive: Archive, name: str) -> dict[str, int]:
    """Return the levels of the styles that are headings, by the ids of the styles."""
    found: dict[str, int] = {}
    if name in archive:
        style = ""
        with archive.member(name) as stream:
            for tag, given in elements(stream):
                if tag == "style":
                    style = given.get("styleId", "")
                elif tag == "name" and (level := _HEADING.fullmatch(given.get("val", ""))):
                    found[style] = int(level[1])
    return found
