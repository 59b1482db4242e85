"""Documents that are zip archives: EPUB, and DOCX of Word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from . import docx, epub
from .archive import opened
from .report import DocumentError, Report


def text_of(path: Path, report: Report) -> Iterator[str]:
    """Yield the text of an archive that is a document."""
    with opened(path) as archive:
        if epub.MARK in archive:
            yield from epub.text_of(archive, report)
        elif docx.MARK in archive:
            yield from docx.text_of(archive, report)
        else:
            raise DocumentError("is a zip archive, and neither DOCX nor EPUB; unpack it and name its files")
