"""Annotations of a PDF page: values of forms, typed text, comments, and lines through words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import pypdfium2
from pypdfium2 import raw

from .page_lines import Run

LINE_PTS = 12.0  # height of a line of a field
MOST_CHARS = 1 << 20  # characters of one annotation
MOST_STRUCK = 1000  # places of a page that are struck out

_UNSEEN = raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW
_NO_TEXT = frozenset({raw.FPDF_ANNOT_POPUP, raw.FPDF_ANNOT_LINK})
_TYPED = frozenset({raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_FREETEXT})
_TICKED = frozenset({raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON})
_WRITTEN = frozenset({raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX})
_PASSWORD = 1 << 13  # flag of a field whose value is not shown

Place = tuple[float, float, float, float]  # left, bottom, right, top


@dataclass(frozen=True, slots=True)
class Annotations:
    """Texts that annotations of a page hold.

    typed: texts and their places; comments: texts; struck: places of words with a line through
    """

    typed: list[tuple[str, Place]]
    comments: list[str]
    struck: list[Place]


def annotations_of(document: pypdfium2.PdfDocument, page: pypdfium2.PdfPage) -> Annotations:
    """Return the texts in the annotations of a page."""
    found = Annotations([], [], [])
    for i in range(raw.FPDFPage_GetAnnotCount(page)):
        with _opened(page, i) as annotation:
            if annotation and not raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN:
                _read(found, annotation, None if document.formenv is None else document.formenv.raw)
    return found


def runs_of(text: str, place: Place) -> Iterator[Run]:
    """Yield the lines of a text that is typed at a place: the lines of a large one from its top, else its middle."""
    left, bottom, right, top = place
    lines = text.split("\n")
    first = min(top, (bottom + top + LINE_PTS * len(lines)) / 2)
    for i, line in enumerate(lines):
        at = first - (i + 1) * LINE_PTS
        yield Run(line, left, right, at, at + LINE_PTS, at + 0.2 * LINE_PTS)


@contextmanager
def _opened(page: pypdfium2.PdfPage, index: int) -> Iterator[Any]:
    annotation = raw.FPDFPage_GetAnnot(page, index)
    try:
        yield annotation
    finally:
        if annotation:
            raw.FPDFPage_CloseAnnot(annotation)


def _read(found: Annotations, annotation: Any, form: Any) -> None:
    kind = raw.FPDFAnnot_GetSubtype(annotation)
    if kind in _NO_TEXT:
        return
    if kind == raw.FPDF_ANNOT_STRIKEOUT:
        found.struck.extend(_marked(annotation, MOST_STRUCK - len(found.struck)))
    if kind == raw.FPDF_ANNOT_WIDGET:
        text = _field(annotation, form) if form is not None else ""
    else:
        text = _text(lambda *room: raw.FPDFAnnot_GetStringValue(annotation, b"Contents", *room))
    if text and kind in _TYPED:
        place = raw.FS_RECTF()
        raw.FPDFAnnot_GetRect(annotation, byref(place))
        found.typed.append((text, (place.left, place.bottom, place.right, place.top)))
    elif text:
        found.comments.append(text)


def _field(annotation: Any, form: Any) -> str:
    """Return the shown value of a form's field; "" = none."""
    kind = raw.FPDFAnnot_GetFormFieldType(form, annotation)
    if kind in _TICKED:
        return "[x]" if raw.FPDFAnnot_IsChecked(form, annotation) else "[ ]"
    if kind not in _WRITTEN or raw.FPDFAnnot_GetFormFieldFlags(form, annotation) & _PASSWORD:
        return ""
    return _text(lambda *room: raw.FPDFAnnot_GetFormFieldValue(form, annotation, *room))


def _text(read: Callable[..., int]) -> str:
    """Return a text that PDFium writes into a buffer. read: takes a buffer and its bytes; returns the bytes needed"""
    n_bytes = min(read(None, 0), 2 * MOST_CHARS)
    if n_bytes <= 2:  # its end alone
        return ""
    room = (raw.FPDF_WCHAR * (n_bytes // 2))()
    if read(room, n_bytes) > n_bytes:
        return ""
    return bytes(room).decode("utf-16-le", "replace").rstrip("\0").replace("\r\n", "\n").replace("\r", "\n").strip()


def _marked(annotation: Any, most: int) -> Iterator[Place]:
    """Yield the places that an annotation marks."""
    for i in range(min(raw.FPDFAnnot_CountAttachmentPoints(annotation), most)):
        corners = raw.FS_QUADPOINTSF()
        if raw.FPDFAnnot_GetAttachmentPoints(annotation, i, byref(corners)):
            xs, ys = ([getattr(corners, f"{axis}{n}") for n in range(1, 5)] for axis in "xy")
            yield min(xs), min(ys), max(xs), max(ys)
