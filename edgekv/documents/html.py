"""HTML as text, piece by piece: headings, paragraphs, lists and tables, without scripts and styles."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import BinaryIO

from .formats import UTF_8, known_encoding, marked_encoding
from .report import DocumentError, Report

PIECE_CHARS = 1 << 14
_PRESCAN_BYTES = 1024  # HTML has to declare its charset here
_CHARSET = re.compile(
    rb"""<meta[^>]{0,400}?charset\s*=\s*["']?\s*([\w.:-]+)|^\s*<\?xml[^>]{0,200}encoding=["']([\w.:-]+)""", re.I
)
# Browsers read these names as windows-1252, and a declared UTF-16 as UTF-8, for ASCII alone could declare it.
_MEANT = {"iso8859-1": "cp1252", "ascii": "cp1252", "utf-16": "utf-8", "utf-16-le": "utf-8", "utf-16-be": "utf-8"}

_SKIPPED = {"script", "style", "template", "noscript", "svg"}
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_PARAGRAPHS = frozenset(_HEADINGS).union(
    ("address", "article", "aside", "blockquote", "body", "center", "details", "dialog", "dl", "fieldset", "figure"),
    ("footer", "form", "head", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "summary", "table"),
    ("title", "ul"),
)
_LINES = {"br", "caption", "dd", "div", "dt", "figcaption", "li", "option", "tr"}
_CELLS = {"td", "th"}
_ROWS = {"tr", "table"}
_GAPS = ("", " ", "\t", "\n", "\n\n")  # what stands between two texts; the widest wins


class TextParser(HTMLParser):
    """Turns HTML that is fed into text that is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[str] = []
        self._gap = 0  # index of what to write before the next text
        self._prefix = ""  # a mark of a heading or an item to write before it
        self._begun = False
        self._skipped: list[str] = []  # open elements whose text is left out
        self._preformatted = 0
        self._cells = 0  # cells of the open row that have begun since the last text

    def take(self) -> str:
        """Return the text since the last call."""
        taken = "".join(self._pieces)
        self._pieces.clear()
        return taken

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        if tag in _SKIPPED:
            self._skipped.append(tag)
        if self._skipped:
            return
        self._break(tag)
        if tag == "pre":
            self._preformatted += 1
        elif tag == "li":
            self._prefix = "- "
        elif tag in _CELLS:
            self._widen("\t")
            self._cells += 1
        elif tag in _HEADINGS:
            self._prefix = _HEADINGS[tag]
        given = dict(attrs)
        if "pagebreak" in (given.get("epub:type") or "") or given.get("role") == "doc-pagebreak":
            self._mark(given.get("title") or given.get("aria-label") or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle an element that XHTML closes at once, which HTML would leave open."""
        if tag not in _SKIPPED:
            self.handle_starttag(tag, attrs)
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        if self._skipped:
            if tag == self._skipped[-1]:
                self._skipped.pop()
            return
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        elif tag == "li" or tag in _HEADINGS:
            self._prefix = ""  # it may have no text, such as a heading that is a picture
        self._break(tag)

    def handle_data(self, data: str) -> None:
        """Add text."""
        if self._skipped:
            return
        if self._preformatted:
            self._put(data)
            return
        if data[:1].isspace():
            self._widen(" ")
        text = " ".join(data.split())
        if text:
            self._put(text)
            if data[-1:].isspace():
                self._widen(" ")

    def _widen(self, gap: str) -> None:
        self._gap = max(self._gap, _GAPS.index(gap))

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._widen("\n\n")
        elif tag in _LINES:
            self._widen("\n")
        if tag in _ROWS:
            self._cells = 0

    def _put(self, text: str) -> None:
        empty_cells = "\t" * (self._cells - 1)
        self._pieces += [_GAPS[self._gap] if self._begun else "", empty_cells, self._prefix, text]
        self._gap, self._cells, self._prefix, self._begun = 0, 0, "", True

    def _mark(self, page: str) -> None:
        """Note where a page of the printed book begins."""
        number = page.split()[-1:] or [""]
        if number[0].strip(".").isalnum():
            self._put(f"[page {number[0].strip('.')}]")
            self._widen(" ")


def text_of(path: Path, _report: Report) -> Iterator[str]:
    """Yield the text of a page of HTML."""
    with path.open("rb") as file:
        yield from text_of_stream(file)


def text_of_stream(file: BinaryIO) -> Iterator[str]:
    """Yield the text of open HTML, in the charset that it declares; UTF-8 if it declares none."""
    charset = _charset(file.read(_PRESCAN_BYTES))
    file.seek(0)
    text, parser = io.TextIOWrapper(file, charset), TextParser()  # turns all ends of lines into \n
    try:
        while piece := text.read(PIECE_CHARS):
            parser.feed(piece)
            yield parser.take()
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"is not in {error.encoding}, as it should be; convert it, as `iconv -f WINDOWS-1252 -t UTF-8` does from "
            "that encoding"
        ) from None
    parser.close()
    yield parser.take()


def _charset(beginning: bytes) -> str:
    marked, declared = marked_encoding(beginning), _CHARSET.search(beginning)
    if marked is not None or declared is None:
        return marked or UTF_8
    name = (declared[1] or declared[2]).decode("ascii", "replace")
    known = known_encoding(name)
    if known is None:
        raise DocumentError(f"declares the charset {name!r}, which is unknown; convert it to UTF-8")
    return _MEANT.get(known, known)
