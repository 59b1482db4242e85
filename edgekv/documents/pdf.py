"""PDF pages as text, by PDFium, which reads a file page by page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from ctypes import byref, c_double
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pypdfium2
from pypdfium2 import raw

from .page_layout import text_of_lines
from .page_lines import WIDE, Run, goes_left, insert, lines_of
from .pdf_annotations import Annotations, Place, annotations_of, runs_of
from .report import STRUCK, DocumentError, Report

MOST_PAGES = 100_000
SLANTED = 4  # stands for a number of quarter turns of text such as a watermark, which is in no line with others
_STRAIGHT = 0.1  # quarter turns by which straight text may be off
_SAME = 0.02  # heights of a line by which letters of one size differ


def text_of(path: Path, report: Report) -> Iterator[str]:
    """Yield the text of each page below a mark such as `[page 12]`. The report gets the pages without text."""
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if error.err_code == raw.FPDF_ERR_PASSWORD:
            raise DocumentError("is encrypted; take its password off, as `qpdf --decrypt` does") from None
        raise DocumentError("is not a whole PDF; get it again, or repair it, as `qpdf` and `mutool clean` do") from None
    with document:
        with suppress(pypdfium2.PdfiumError):  # values of a form that is damaged are not read
            document.init_forms()
        report.n_pages = len(document)
        if report.n_pages > MOST_PAGES:
            raise DocumentError(f"says that it has {report.n_pages:,} pages; at most {MOST_PAGES:,} are read")
        for number in range(1, report.n_pages + 1):
            text = _page_text(document, number - 1, report).strip()
            if text:
                yield f"[page {number}]\n{text}\n\n"
            else:
                report.add_blank(number)


def _page_text(document: pypdfium2.PdfDocument, index: int, report: Report) -> str:
    """Return the text of a page; "" if the page cannot be read."""
    try:
        with closing(document[index]) as page, closing(page.get_textpage()) as text:
            return _text_of(_Letters(text.raw), annotations_of(document, page), report)
    except pypdfium2.PdfiumError:
        return ""


def _text_of(letters: _Letters, written: Annotations, report: Report) -> str:
    """Return the text of a page: that of its main direction, with what is typed on it, then others, then comments."""
    runs: dict[int, list[Run]] = {}
    for quarter, run in letters.runs(written.struck, report):
        runs.setdefault(quarter, []).append(run)
    sizes = Counter({quarter: sum(len(run.text) for run in some) for quarter, some in runs.items()})
    directions = [quarter for quarter, _ in sizes.most_common()] or [0]
    texts = []
    for quarter in directions:
        some = runs.get(quarter, [])
        typed = _typed(written, quarter) if quarter == directions[0] else []
        if goes_left(some):
            some, typed = [run.mirrored() for run in some], [run.mirrored() for run in typed]
        lines = lines_of(some)
        for run in typed:
            insert(lines, run)
        texts.append(text_of_lines(lines))
    return "\n".join(filter(None, [*texts, *(f"[comment] {text}" for text in written.comments)]))


def _typed(written: Annotations, quarter: int) -> list[Run]:
    return [run for text, place in written.typed for run in runs_of(text, _turned(place, quarter))]


class _Letters:
    """The letters of a page, as PDFium finds them."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._box, self._x, self._y = raw.FS_RECTF(), c_double(), c_double()

    def runs(self, struck: list[Place], report: Report) -> Iterator[tuple[int, Run]]:
        """Yield runs of letters, each with the quarter turns clockwise of its letters, or SLANTED.

        struck: places of letters that are left out, which the report gets
        """
        opened: _OpenRun | None = None
        is_apart = ends = False  # PDFium put a space, or the end of a line, between the last letter and this one
        for i in range(raw.FPDFText_CountChars(self._page)):
            letter, place = chr(raw.FPDFText_GetUnicode(self._page, i)), self._place(i)
            if place is None:
                is_apart, ends = True, ends or letter != " "
                continue
            following = None if ends or opened is None or not self._goes_on(opened, place, i) else opened
            if struck and _is_in(place, struck):
                report.leave_out(STRUCK, letter)
                if following is not None:
                    following.cover(place)  # no gap is there that would part two cells
                    is_apart = True
                continue
            if following is not None:
                following.add(letter, place, is_apart=is_apart)
            else:
                if opened is not None:
                    yield opened.closed()
                opened = self._begun(i, letter, place, is_apart=is_apart and not ends)
            is_apart = ends = False
        if opened is not None:
            yield opened.closed()

    def _begun(self, i: int, letter: str, place: Place, *, is_apart: bool) -> _OpenRun:
        quarter = self._quarter(i)
        left, bottom, right, top = _turned(place, quarter)
        run = Run("", left, right, bottom, top, self._baseline(i, quarter))
        return _OpenRun(quarter, run, [" " * is_apart, letter], left)

    def _goes_on(self, opened: _OpenRun, place: Place, i: int) -> bool:
        if opened.quarter == SLANTED:
            return self._quarter(i) == SLANTED
        return opened.takes(place)

    def _place(self, i: int) -> Place | None:
        """Return the place of a letter, as high as its line; None = PDFium has inserted the letter."""
        box = self._box
        raw.FPDFText_GetLooseCharBox(self._page, i, byref(box))
        if box.top > box.bottom:
            return box.left, box.bottom, box.right, box.top
        if raw.FPDFText_IsGenerated(self._page, i) or chr(raw.FPDFText_GetUnicode(self._page, i)).isspace():
            return None
        return box.left, box.bottom, box.right, box.bottom + max(1.0, raw.FPDFText_GetFontSize(self._page, i))

    def _quarter(self, i: int) -> int:
        turns = float(raw.FPDFText_GetCharAngle(self._page, i)) / (math.pi / 2)
        return round(turns) % 4 if abs(turns - round(turns)) < _STRAIGHT else SLANTED

    def _baseline(self, i: int, quarter: int) -> float:
        raw.FPDFText_GetCharOrigin(self._page, i, byref(self._x), byref(self._y))
        x, y = self._x.value, self._y.value
        return (y, x, -y, -x, y)[quarter]


@dataclass(slots=True)
class _OpenRun:
    """A run whose end is not known. quarter: as of `_Letters.runs`; last: the left of its last letter"""

    quarter: int
    run: Run
    letters: list[str]
    last: float

    def takes(self, place: Place) -> bool:
        """Return True if a letter goes on with the run.

        Letters of a ligature share a place, an accent stands over its letter, and Hebrew goes left.
        """
        left, bottom, _, top = _turned(place, self.quarter)
        height = self.run.height
        is_alike = abs(bottom - self.run.bottom) < _SAME * height and abs(top - self.run.top) < _SAME * height
        return is_alike and self.last - height <= left < self.run.right + WIDE * height

    def add(self, letter: str, place: Place, *, is_apart: bool) -> None:
        """Add a letter. is_apart: PDFium sees a space before it"""
        self.letters += [" " * (is_apart and " " not in (self.letters[-1], letter)), letter]
        self.cover(place)

    def cover(self, place: Place) -> None:
        """Go on to the place of a letter."""
        left, _, right, _ = _turned(place, self.quarter)
        self.run.left, self.run.right, self.last = min(self.run.left, left), max(self.run.right, right), left

    def closed(self) -> tuple[int, Run]:
        """Return the run with its text."""
        text = "".join(self.letters).replace("\0", "")
        self.run.text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # some systems give halves
        return self.quarter, self.run


def _turned(place: Place, quarter: int) -> Place:
    """Return a place as a reader sees it who turns the page, so that text of a direction goes right."""
    left, bottom, right, top = place
    if quarter == 1:
        return -top, left, -bottom, right
    if quarter == 2:
        return -right, -top, -left, -bottom
    if quarter == 3:
        return bottom, -right, top, -left
    return place


def _is_in(place: Place, struck: list[Place]) -> bool:
    x, y = (place[0] + place[2]) / 2, (place[1] + place[3]) / 2
    return any(left <= x <= right and bottom <= y <= top for left, bottom, right, top in struck)
