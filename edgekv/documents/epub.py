"""EPUB as text: its chapters in the order of the book."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from urllib.parse import unquote

from . import html
from .archive import Archive
from .report import DocumentError, Report
from .xml import Attributes, elements

MARK = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "text/x-oeb1-document")
_ENDINGS = (".xhtml", ".html", ".htm")
_SKIPPED = html.SKIPPED | {"title"}  # a chapter shows its title itself, if it has one
_NAMED = 3  # chapters that a message names


def text_of(archive: Archive, report: Report) -> Iterator[str]:
    """Yield the text of each chapter. The report gets those that cannot be read.

    Raises DocumentError for a protected book, and for one without a chapter that can be read.
    """
    package, references = _spine(archive)
    folder = posixpath.dirname(package)
    chapters = [archive.found(posixpath.normpath(posixpath.join(folder, it))) for it in references]
    if {*chapters} & {*_encrypted(archive)}:
        raise DocumentError("is protected against copying (DRM), so it cannot be read; get it without")
    lost: list[str] = []
    for reference, name in zip(references, chapters, strict=True):
        if name is None:
            lost.append(reference)
            continue
        try:
            with archive.member(name) as chapter:
                yield from html.text_of_stream(chapter, report, _SKIPPED)
        except DocumentError:
            lost.append(reference)
        yield "\n\n"
    if lost:
        named = ", ".join(map(repr, lost[:_NAMED])) + f" and {len(lost) - _NAMED:,} more" * (len(lost) > _NAMED)
        told = f"lacks {len(lost):,} of its {len(references):,} chapters, which are missing or damaged: {named}"
        if len(lost) == len(references):
            raise DocumentError(f"{told}; get it again")
        report.note(f"{told}; the others are read, so get it again if these matter")


def _spine(archive: Archive) -> tuple[str, list[str]]:
    """Return the name of the package, and references to its chapters in the order of the book, relative to it.

    A chapter that the package does not list has its id for a reference.
    """
    named, manifest, order = "", dict[str, str](), list[str]()
    with archive.member(MARK) as container:
        for tag, given in elements(container):
            if tag == "rootfile" and not named:
                named = given.get("full-path", "")
    package = archive.found(named) or named
    with archive.member(package) as stream:
        for tag, given in elements(stream):
            if tag == "item":
                manifest[given.get("id", "")] = _page_of(given)
            elif tag == "itemref":
                order.append(given.get("idref", ""))
    return package, [reference for it in order if (reference := manifest.get(it, it))]


def _page_of(item: Attributes) -> str:
    """Return the reference of a page of text; "" for another item, such as a picture."""
    reference = item.get("href", "").partition("#")[0]
    is_page = item.get("media-type", "").lower() in _PAGES or reference.lower().endswith(_ENDINGS)
    return reference if is_page else ""


def _encrypted(archive: Archive) -> Iterator[str]:
    """Yield the names of encrypted members; fonts often are in books that are not protected."""
    if _ENCRYPTION in archive:
        with archive.member(_ENCRYPTION) as stream:
            yield from (unquote(given.get("URI", "")) for tag, given in elements(stream) if tag == "CipherReference")
