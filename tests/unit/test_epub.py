"""Chapters of an EPUB are found by any spelling of their names, and one that is lost loses no other."""

from __future__ import annotations

import pytest
from document_files import converted, write_epub

from edgekv.documents.report import DocumentError

XHTML = "application/xhtml+xml"
PAGE = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>t</title></head><body><p>{}</p></body></html>'
LACKS = "lacks {} chapters, which are missing or damaged: {}"


@pytest.fixture
def book(tmp_path):
    """A function that writes an EPUB of chapters; returns its path.

    A chapter is a reference, the name that it has in the archive (None = it is missing), and its text.
    """

    def write(*chapters, kind=XHTML):
        items = "".join(f'<item id="i{i}" href="{it[0]}" media-type="{kind}"/>' for i, it in enumerate(chapters))
        spine = "".join(f'<itemref idref="i{i}"/>' for i in range(len(chapters)))
        pages = {f"OPS/{name}": PAGE.format(text) for _, name, text in chapters if name is not None}
        package = {"OPS/book.opf": f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>"}
        return write_epub(tmp_path / "a.epub", [], **package, **pages)

    return write


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("a%20b.xhtml", "a b.xhtml"),
        ("CR%21a.xhtml", "CR%21a.xhtml"),
        ("A.xhtml", "a.XHTML"),
        ("Caf%C3%A9.xhtml", "Cafe\u0301.xhtml"),
        ("../OPS/a.xhtml#part2", "a.xhtml"),
        ("text/a.xhtml", "text\\a.xhtml"),
    ],
)
def test_a_chapter_is_found_by_any_spelling_of_its_name(book, reference, name):
    text, report = converted(book(("first.html", "first.html", "One"), (reference, name, "Two")))
    assert (text, report.notes) == ("One\n\nTwo\n\n", [])


@pytest.mark.parametrize(
    "kind", ["text/x-oeb1-document", "text/html", "Application/XHTML+xml", "application/octet-stream"]
)
def test_chapters_of_every_type_are_read(book, kind):
    path = book(("a.html", "a.html", "<![CDATA[x < 417]]> &amp; y"), kind=kind)
    assert converted(path)[0] == "x < 417 & y\n\n"


def test_a_chapter_that_is_not_there_is_told_and_the_others_are_read(book):
    text, report = converted(book(("a.html", "a.html", "One"), ("gone.html", None, ""), ("c.html", "c.html", "Three")))
    assert text == "One\n\nThree\n\n"
    assert report.notes == [
        LACKS.format("1 of its 3", "'gone.html'; the others are read, so get it again if these matter")
    ]
    with pytest.raises(DocumentError) as raised:
        converted(book(*((f"{i}.html", None, "") for i in range(5))))
    assert str(raised.value) == LACKS.format("5 of its 5", "'0.html', '1.html', '2.html' and 2 more; get it again")


def test_a_damaged_chapter_loses_no_other(book):
    path = book(("a.html", "a.html", "One"), ("b.html", "b.html", "Two " * 99), ("c.html", "c.html", "Three"))
    content = bytearray(path.read_bytes())
    at = content.index(b"OPS/b.html") + len(b"OPS/b.html")
    content[at : at + 20] = bytes(20)
    path.write_bytes(content)
    text, report = converted(path)
    assert (text[:5], text[-7:]) == ("One\n\n", "Three\n\n")
    assert report.notes[0].startswith(LACKS.format("1 of its 3", "'b.html'"))
