"""EPUB as text: its chapters in the order of the book."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from urllib.parse import unquote

from . import html
from .archive import Archive
from .report import DocumentError, Report
from .xml import elements

MARK = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def text_of(archive: Archive, _report: Report) -> Iterator[str]:
    """Yield the text of each chapter."""
    chapters = _chapters(archive)
    if {*chapters} & {*_encrypted(archive)}:
        raise DocumentError("is protected against copying (DRM), so it cannot be read; get it without")
    for name in chapters:
        with archive.member(name) as chapter:
            yield from html.text_of_stream(chapter)
        yield "\n\n"


def _chapters(archive: Archive) -> list[str]:
    package, manifest, order = "", {}, []
    with archive.member(MARK) as container:
        for tag, given in elements(container):
            if tag == "rootfile" and not package:
                package = given.get("full-path", "")
    with archive.member(package) as stream:
        for tag, given in elements(stream):
            if tag == "item" and given.get("media-type") in _PAGES:
                manifest[given.get("id")] = unquote(given.get("href", ""))
            elif tag == "itemref":
                order.append(given.get("idref"))
    folder = posixpath.dirname(package)
    return [posixpath.normpath(posixpath.join(folder, manifest[it])) for it in order if it in manifest]


def _encrypted(archive: Archive) -> Iterator[str]:
    """Yield the names of encrypted members; fonts often are in books that are not protected."""
    if _ENCRYPTION in archive:
        with archive.member(_ENCRYPTION) as stream:
            yield from (unquote(given.get("URI", "")) for tag, given in elements(stream) if tag == "CipherReference")
