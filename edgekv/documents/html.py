"""HTML as text, piece by piece: headings, paragraphs, lists and tables, without scripts and styles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from io import IncrementalNewlineDecoder
from pathlib import Path
from typing import BinaryIO

from .encodings import UTF_8, TextDecoder, known_encoding, marked_encoding
from .formula import Formula
from .numbering import number
from .report import HIDDEN, STRUCK, DocumentError, Report
from .scripts import LOWERED, RAISED
from .text_writer import BLANK, LINE, PARAGRAPH, TextWriter

PIECE_BYTES = 1 << 14
_PRESCAN_BYTES = 1024  # HTML has to declare its charset here
_CHARSET = re.compile(
    rb"""<meta[^>]{0,400}?charset\s*=\s*["']?\s*([\w.:-]+)|^\s*<\?xml[^>]{0,200}encoding=["']([\w.:-]+)""", re.I
)

SKIPPED = frozenset({"script", "style", "template", "noscript", "svg"})
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_PARAGRAPHS = frozenset(_HEADINGS).union(
    ("address", "article", "aside", "blockquote", "body", "center", "details", "dialog", "dl", "fieldset", "figure"),
    ("footer", "form", "head", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "summary", "title", "ul"),
)
_LINES = frozenset({"br", "caption", "dd", "div", "dt", "figcaption", "li", "option"})
_LISTS = frozenset({"ol", "ul"})
_STRUCK = frozenset({"del", "s", "strike"})
_SCRIPTS = {"sup": RAISED, "sub": LOWERED}

_STYLED = frozenset(
    {"a", "b", "div", "em", "font", "i", "section", "small", "span", "strong", "u"}
)  # elements whose style is read
_STYLE_STRUCK = re.compile(r"text-decoration[\w-]*\s*:[^;]*line-through", re.I)
_STYLE_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.I)
_STYLE_SCRIPT = re.compile(r"vertical-align\s*:\s*(sup|sub)(?:er)?\b", re.I)

_FILLED_IN = frozenset({"", "text", "number", "email", "tel", "url", "date", "time", "month", "week", "search"})
_TICKED = frozenset({"checkbox", "radio"})
MOST_ROWS = 65534  # the most rows that a cell reaches down
_MOST_DEPTH = 10  # lists in lists that are told from each other

Attributes = dict[str, str | None]


class _Open(list[str]):
    """Open elements of one meaning, and elements of the same names in them."""

    def start(self, tag: str, *, means: bool) -> bool:
        """Begin an element. means: it has the meaning. Return True if it is the outermost one."""
        if means or tag in self:
            self.append(tag)
        return len(self) == 1 and self[0] == tag and means

    def end(self, tag: str) -> bool:
        """End an element. Return True if no element of this meaning is open any more, and one was."""
        if tag not in self:
            return False
        while self.pop() != tag:
            pass
        return not self


class _List:
    """An open list, and the number of its next item. kind: as of `number`; "" = it has no numbers"""

    def __init__(self, tag: str, given: Attributes) -> None:
        self._kind = (given.get("type") or "1") if tag == "ol" else ""
        self._next = _count(given.get("start"), 1)

    def mark(self, value: str | None) -> str:
        """Return the mark of the next item. value: the number that it says it has"""
        if not self._kind:
            return "- "
        n = _count(value, self._next)
        self._next = n + 1
        return f"{number(n, self._kind)}. "


class TextParser(HTMLParser):
    """Turns HTML that is fed into text that is taken."""

    def __init__(self, report: Report, skipped: frozenset[str] = SKIPPED) -> None:
        """report: gets what is left out; skipped: elements without a text for readers"""
        super().__init__()
        _read_cdata(self)
        self._report = report
        self._skips = skipped
        self._writer = TextWriter()
        self._skipped, self._struck, self._hidden, self._links = _Open(), _Open(), _Open(), _Open()
        self._scripts = {mark: _Open() for mark in (RAISED, LOWERED)}
        self._lists: list[_List] = []
        self._preformatted = 0
        self._formula: Formula | None = None

    def take(self) -> str:
        """Return the text since the last call."""
        return self._writer.take()

    def finish(self) -> str:
        """End the text, and return what is left of it."""
        self.close()
        self._end_formula()
        self._writer.finish()
        return self._writer.take()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        self._skipped.start(tag, means=tag in self._skips)
        if self._skipped:
            return
        given = dict(attrs)
        if tag in _PARAGRAPHS or tag in _LINES:
            self._end_formula()  # its end is missing
        if self._formula is not None:
            self._formula.start(tag)
        elif tag == "math":
            self._formula = Formula()
        else:
            self._begin_inline(tag, given)
            self._begin_block(tag, given)

    def _begin_inline(self, tag: str, given: Attributes) -> None:
        style = (given.get("style") or "") if tag in _STYLED else ""
        self._struck.start(tag, means=tag in _STRUCK or bool(_STYLE_STRUCK.search(style)))
        self._hidden.start(tag, means=tag in _STYLED and ("hidden" in given or bool(_STYLE_HIDDEN.search(style))))
        styled = _STYLE_SCRIPT.search(style)
        mark = _SCRIPTS.get(styled[1].lower() if styled else tag)
        for it, opened in self._scripts.items():
            if opened.start(tag, means=mark == it):
                self._writer.begin_script(it)
        self._links.start(tag, means=tag == "a" and "href" in given)
        if "pagebreak" in (given.get("epub:type") or "") or given.get("role") == "doc-pagebreak":
            self._mark_page(given.get("title") or given.get("aria-label") or "")
        if tag == "input":
            self._fill_in(given)

    def _begin_block(self, tag: str, given: Attributes) -> None:
        writer = self._writer
        if tag in _HEADINGS:
            writer.begin_prose()
        self._break(tag)
        if tag == "pre":
            self._preformatted += 1
        elif tag == "table":
            writer.begin_table()
        elif tag in ("thead", "tbody", "tfoot"):
            writer.begin_rows()
        elif tag == "tr":
            writer.begin_row()
        elif tag in ("td", "th"):
            writer.begin_cell()
            rows = _count(given.get("rowspan"), 1) or MOST_ROWS  # 0 = down to the last one
            writer.widen_cell(_count(given.get("colspan"), 1), min(rows, MOST_ROWS))
        elif tag in _LISTS:
            self._lists.append(_List(tag, given))
        elif tag == "li":
            items = self._lists[-1] if self._lists else _List("ul", {})
            depth = min(len(self._lists), _MOST_DEPTH)
            writer.prefix("  " * (depth - 1) + items.mark(given.get("value")))
        elif tag in _HEADINGS:
            writer.prefix(_HEADINGS[tag])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle an element that XHTML closes at once, which HTML would leave open."""
        if tag not in self._skips:
            self.handle_starttag(tag, attrs)
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        if self._skipped:
            self._skipped.end(tag)
        elif self._formula is not None and tag == "math":
            self._end_formula()
        elif self._formula is not None:
            self._formula.end(tag)
        else:
            self._end(tag)

    def _end(self, tag: str) -> None:
        self._struck.end(tag)
        self._hidden.end(tag)
        self._links.end(tag)
        for opened in self._scripts.values():
            if opened.end(tag):
                self._writer.end_script()
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        elif tag == "table":
            self._writer.end_table()
        elif tag in _LISTS and self._lists:
            self._lists.pop()
        elif tag == "li" or tag in _HEADINGS:
            self._writer.prefix("")  # it may have no text, such as a heading that is a picture
        self._break(tag)

    def handle_data(self, data: str) -> None:
        """Add text."""
        if self._skipped:
            return
        if self._struck or self._hidden:
            self._report.leave_out(STRUCK if self._struck else HIDDEN, data)
            self._writer.gap(BLANK)
        elif self._formula is not None:
            self._formula.text(" ".join(data.split()))
        elif self._preformatted:
            self._writer.put(data)
        else:
            self._put_words(data)

    def unknown_decl(self, data: str) -> None:
        """Add text in CDATA, which XHTML has."""
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))

    def _put_words(self, data: str) -> None:
        if data[:1].isspace():
            self._writer.gap(BLANK)
        if text := " ".join(data.split()):
            self._writer.put(f"[{text}]" if self._is_note(text) else text)
            if data[-1:].isspace():
                self._writer.gap(BLANK)

    def _is_note(self, text: str) -> bool:
        """Return True for a raised number that is a link, as marks of notes are."""
        return bool(self._links and self._scripts[RAISED]) and text.isalnum()

    def _end_formula(self) -> None:
        formula, self._formula = self._formula, None
        if formula is not None:
            self._writer.put(formula.line())

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            for opened in self._scripts.values():  # raised text ends with its paragraph, if its end is missing
                opened.clear()
            is_nested = tag in _LISTS and self._lists
            self._writer.gap(LINE if is_nested else PARAGRAPH)
        elif tag in _LINES:
            self._writer.gap(LINE)

    def _mark_page(self, page: str) -> None:
        """Note where a page of the printed book begins."""
        name = (page.split() or [""])[-1].strip(".")
        if name.isalnum():
            self._writer.put(f"[page {name}]")
            self._writer.gap(BLANK)

    def _fill_in(self, given: Attributes) -> None:
        """Put the value of a form's field."""
        kind = (given.get("type") or "").lower()
        if kind in _TICKED:
            self._writer.put("[x]" if "checked" in given else "[ ]")
        elif kind in _FILLED_IN:
            self._writer.put(given.get("value") or "")


def text_of(path: Path, report: Report) -> Iterator[str]:
    """Yield the text of a page of HTML. The report gets what is left out."""
    with path.open("rb") as file:
        yield from text_of_stream(file, report)


def text_of_stream(file: BinaryIO, report: Report, skipped: frozenset[str] = SKIPPED) -> Iterator[str]:
    """Yield the text of open HTML, in the charset that it declares; UTF-8 if it declares none.

    skipped: elements whose text is left out
    """
    raw = file.read(PIECE_BYTES)
    decoder = TextDecoder(_charset(raw[:_PRESCAN_BYTES]))
    lines = IncrementalNewlineDecoder(None, translate=True)  # turns all ends of lines into \n
    parser = TextParser(report, skipped)
    try:
        while True:
            parser.feed(lines.decode(decoder.decode(raw, final=not raw), final=not raw))
            if decoder.has_other_encoding:
                raise DocumentError(f"{decoder.damage}; {decoder.remedy}")
            yield parser.take()
            if not raw:
                break
            raw = file.read(PIECE_BYTES)
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not in {error.encoding}, as it should be; convert it to UTF-8") from None
    report.note(decoder.note)
    yield parser.finish()


def _read_cdata(parser: HTMLParser) -> None:
    """Have a parser read CDATA as text, as in XHTML. Newer versions of Python take it for a comment."""
    support = getattr(parser, "_set_support_cdata", None)
    if support is not None:
        support(True)


def _count(value: str | None, otherwise: int) -> int:
    """Return the number that an attribute has, or another one if it has none."""
    text = (value or "").strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else otherwise


def _charset(beginning: bytes) -> str:
    marked, declared = marked_encoding(beginning), _CHARSET.search(beginning)
    if marked is not None or declared is None:
        return marked or UTF_8
    name = (declared[1] or declared[2]).decode("ascii", "replace")
    known = known_encoding(name)
    if known is None:
        raise DocumentError(f"declares the charset {name!r}, which is unknown; convert it to UTF-8")
    return "utf-8" if known.startswith(("utf-16", "utf-32")) else known  # ASCII alone could declare them
