"""PDF pages as text, by PDFium, which reads a file page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pypdfium2
from pypdfium2.raw import FPDF_ERR_PASSWORD

from .report import DocumentError, Report

MOST_PAGES = 100_000
_JOINS = "\ufffe"  # PDFium's mark where a word goes on in the next line


def text_of(path: Path, report: Report) -> Iterator[str]:
    """Yield the text of each page below a mark such as `[page 12]`. The report gets the pages without text."""
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if error.err_code == FPDF_ERR_PASSWORD:
            raise DocumentError("is encrypted; take its password off, as `qpdf --decrypt` does") from None
        raise DocumentError("is not a whole PDF; get it again, or repair it, as `qpdf` and `mutool clean` do") from None
    with document:
        report.n_pages = len(document)
        if report.n_pages > MOST_PAGES:
            raise DocumentError(f"says that it has {report.n_pages:,} pages; at most {MOST_PAGES:,} are read")
        for number in range(1, report.n_pages + 1):
            text = _page_text(document, number - 1).replace(_JOINS, "").replace("\r\n", "\n").strip()
            if text:
                yield f"[page {number}]\n{text}\n\n"
            else:
                report.add_blank(number)


def _page_text(document: pypdfium2.PdfDocument, index: int) -> str:
    """Return the text of a page; "" if the page cannot be read."""
    try:
        with closing(document[index]) as page, closing(page.get_textpage()) as text:
            return str(text.get_text_range())
    except pypdfium2.PdfiumError:
        return ""
