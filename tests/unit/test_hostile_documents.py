"""Documents made to do harm: each is refused with an error of its kind, within the limits of its process."""

from __future__ import annotations

import zlib

import pytest
from document_files import (
    WORD,
    XML,
    page_stream,
    paragraph,
    pdf_of,
    pdf_with,
    stream,
    write_docx,
    write_epub,
)

from edgekv import InputError
from edgekv.documents import conversion
from edgekv.documents.conversion import Limits, convert
from edgekv.documents.formats import format_of
from edgekv.documents.text_writer import MOST_COLUMNS
from edgekv.memory.sizes import MIB
from edgekv.prompt import spool

LIMITS = Limits(memory_bytes=128 * MIB, seconds=60, text_bytes=4 * MIB)
SHOWN = stream(page_stream(["x"]))
IN_A_LOOP = b"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X1 5 0 R >> >> /Length 14 >>"


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """A function that reads a document, which must be refused; returns the message. Nothing is left on the disk."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(spool, "PROC", tmp_path / "no-proc")  # copies have names there, which could be left

    def read(path, limits=LIMITS):
        monkeypatch.setattr(conversion, "Limits", lambda: limits)
        with pytest.raises(InputError) as raised, spool.rereadable(path):
            pass
        assert list(folder.iterdir()) == []
        assert str(raised.value).startswith(f"{path} ")
        return str(raised.value)

    return read


@pytest.fixture
def pdf(tmp_path):
    """A function that writes a PDF; returns its path."""

    def write(content):
        path = tmp_path / "book.pdf"
        path.write_bytes(content)
        return path

    return write


def bomb():
    """Return 600 MB of operators that show text, deflated to less than 1 MB."""
    packer, shown = zlib.compressobj(9), b"(a) Tj " * (1 << 16)
    return b"".join([packer.compress(b"BT /F1 9 Tf "), *(packer.compress(shown) for _ in range(1300)), packer.flush()])


@pytest.mark.parametrize("n_times", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_deflate_bombs(refused, pdf, n_times):
    packed = bomb() if n_times == 1 else zlib.compress(bomb(), 9)
    content = stream(b"", *(["/FlateDecode /FlateDecode"] if n_times == 2 else []), data=packed)
    assert "cannot be converted in 128.0 MiB" in refused(pdf(pdf_with([content])))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pdf_with([IN_A_LOOP + b"\nstream\n/X1 Do /X1 Do \nendstream"]), "cannot be converted in 128.0 MiB"),
        (pdf_with([SHOWN], kids="2 0 R 2 0 R", count=2000), "has no text on its 2,000 page"),
        (pdf_with([b"<< /Length 5 0 R >>\nstream\nhello\nendstream"]), "has no text on its 1 page"),
    ],
    ids=["forms", "pages", "lengths"],
)
def test_objects_that_go_in_circles(refused, pdf, content, words):
    assert words in refused(pdf(content))


def test_a_number_of_pages_that_is_not_true(pdf):
    """PDFium counts them itself, and this file has one."""
    path = pdf(pdf_with([SHOWN], count=(1 << 31) - 1))
    assert "".join(convert(path, format_of(path), LIMITS)) == "[page 1]\nx\n\n"


def test_an_encrypted_pdf(refused, pdf):
    keys = f"/O <{'11' * 32}> /U <{'22' * 32}>"
    trailer = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 {keys} >> /ID [<00> <00>]"
    assert "is encrypted; take its password off" in refused(pdf(pdf_with([SHOWN], trailer=trailer)))


@pytest.mark.parametrize("n_bytes", [9, 100, 5000])
def test_a_pdf_that_is_cut(refused, pdf, n_bytes):
    assert "is not a whole PDF" in refused(pdf(pdf_of([["a"]] * 50)[:n_bytes]))


def test_zip_bombs(refused, tmp_path):
    shown = ["abcdefgh" * (1 << 14)] * 200
    text = write_docx(tmp_path / "text.docx", iter([f'{XML}<w:d xmlns:w="{WORD}"><w:t>', *shown]))
    assert text.stat().st_size < 1 << 18
    assert "has more than 4.0 MiB of text" in refused(text)
    chapter = write_epub(tmp_path / "novel.epub", ["<p>" + "".join(shown)])
    assert "has more than 4.0 MiB of text" in refused(chapter)


def test_elements_and_attributes_without_end(refused, tmp_path):
    deep = write_docx(tmp_path / "deep.docx", iter([XML, *["<a>" * (1 << 16)] * 200]))
    assert "takes more than 128.0 MiB to convert" in refused(deep)
    open_tag = tmp_path / "page.html"
    open_tag.write_bytes(b"<a " + b"b " * (24 << 20))
    assert "takes more than 96.0 MiB to convert" in refused(open_tag, Limits(96 * MIB, 60, MIB))


def test_cells_over_more_columns_and_rows_than_there_are(tmp_path):
    path, cells = tmp_path / "page.html", "<td colspan=999999999 rowspan=999999999>x" * 9
    path.write_text(f"<table>{f'<tr>{cells}' * 9}</table>")
    text = "".join(convert(path, format_of(path), LIMITS))
    assert text.count("x") == 81
    assert max(line.count("\t") for line in text.splitlines()) <= MOST_COLUMNS
    body = '<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val="999999999"/></w:tcPr></w:tc><w:tc>{}</w:tc></w:tr></w:tbl>'
    path = write_docx(tmp_path / "a.docx", body.format(paragraph("x")))
    assert "".join(convert(path, format_of(path), LIMITS)) == "\t" * MOST_COLUMNS + "x\n\n"


def test_raised_text_without_end_is_text(tmp_path):
    path, text = tmp_path / "page.html", "The key is 417. " * 99
    path.write_text(f"10<sup>{text}<p>25<sup>1<p>end")
    assert "".join(convert(path, format_of(path), LIMITS)) == f"10{text.strip()}\n\n25^1\n\nend"


def test_entities_that_grow(refused, tmp_path):
    entities = '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">'
    path = write_docx(tmp_path / "a.docx", iter([f"{XML}<!DOCTYPE d [{entities}]><d>&b;</d>"]))
    assert "declares the entity 'a', which is refused" in refused(path)


@pytest.mark.parametrize(("cut", "words"), [(-40, "is not a whole zip archive"), (300, "is not a whole zip archive")])
def test_an_archive_that_is_cut(refused, tmp_path, cut, words):
    path = write_docx(tmp_path / "a.docx", paragraph("hello " * 999))
    path.write_bytes(path.read_bytes()[:cut])
    assert words in refused(path)


def test_an_archive_with_a_damaged_member(refused, tmp_path):
    path = write_docx(tmp_path / "a.docx", paragraph("hello"))
    content = bytearray(path.read_bytes())
    at = content.index(b"word/document.xml") + len("word/document.xml")
    content[at : at + 20] = bytes(20)
    path.write_bytes(content)
    assert "is damaged at 'word/document.xml'" in refused(path)


def test_what_takes_too_long(refused, tmp_path):
    """A comment that begins a million times takes hours."""
    path = tmp_path / "page.html"
    path.write_bytes(b"<!--" * (4 << 20))
    assert "takes more than 1 s to convert" in refused(path, Limits(seconds=1))


def test_the_process_is_watched_where_the_system_does_not_limit_it(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "IS_LIMITED", False)
    monkeypatch.setattr(conversion, "CODE", "import time; held = b'x' * (1 << 26); time.sleep(600)")
    path = tmp_path / "page.html"
    path.write_text("<p>x")
    assert "takes more than 32.0 MiB to convert" in refused(path, Limits(memory_bytes=32 * MIB))
