"""Documents as texts: PDF, DOCX, EPUB and HTML, and texts in declared encodings."""

from __future__ import annotations

import sys
import threading
import warnings

import pytest
from document_files import paragraph, pdf_of, write_docx, write_epub, write_zip

from edgekv import ConfigError, InputError
from edgekv.documents import conversion
from edgekv.documents.conversion import convert
from edgekv.documents.formats import format_of, is_convertible
from edgekv.documents.text_file import read_text
from edgekv.prompt.spool import rereadable


@pytest.fixture
def text_of(tmp_path):
    """A function that writes bytes under a name and returns the text that a prompt has of it."""

    def read(name, content=None):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with rereadable(path) as copy:
            return "".join(read_text(copy))

    return read


def test_pages_of_a_pdf_are_marked(text_of):
    pages = [["The stranger came", "in winter (late)."], ["He had a \\ bag, for 5 €."]]
    assert text_of("book.pdf", pdf_of(pages)) == (
        "[page 1]\nThe stranger came\nin winter (late).\n\n[page 2]\nHe had a \\ bag, for 5 €.\n\n"
    )


def test_words_that_a_line_of_a_pdf_divides_are_whole(text_of):
    assert "an extraordinary whale" in text_of("book.pdf", pdf_of([["an extraor-", "dinary whale"]]))


def test_pages_without_text_are_named(text_of):
    pages = [["first"], [], [], ["fourth"], []]
    with pytest.warns(UserWarning, match=r"has no text on 3 of its 5 pages \(2-3, 5\)"):
        assert text_of("book.pdf", pdf_of(pages)) == "[page 1]\nfirst\n\n[page 4]\nfourth\n\n"


def test_what_is_left_out_is_told(text_of):
    page = b"<p>due <s>Monday</s><del> May 1</del> Friday<span hidden>x</span>"
    with pytest.warns(
        UserWarning, match=r"without its struck-out text \(11 characters\), hidden text \(1 character\)$"
    ):
        assert text_of("page.html", page) == "due Friday"


def test_a_scan_is_refused(text_of):
    with pytest.raises(InputError, match=r"scan\.pdf has no text on its 2 pages, as a scan has none; run OCR"):
        text_of("scan.pdf", pdf_of([[], []]))


def test_a_pdf_is_told_by_its_beginning(text_of):
    assert text_of("book.txt", pdf_of([["hello"]])) == "[page 1]\nhello\n\n"


def test_paragraphs_headings_lists_tables_and_notes_of_a_docx(text_of, tmp_path):
    item = "<w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>one</w:t></w:r><w:r><w:tab/><w:t>more</w:t></w:r></w:p>"
    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("a", "b"))
    changed = (
        "<w:p><w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:ins><w:r><w:t>new</w:t></w:r></w:ins>"
        "<w:moveFrom><w:r><w:t>away</w:t></w:r></w:moveFrom>"
        '<w:r><w:lastRenderedPageBreak/><w:t>next</w:t><w:footnoteReference w:id="2"/></w:r></w:p>'
    )
    styles = '<w:style w:styleId="U2"><w:name w:val="heading 2"/></w:style>'
    note = f'<w:footnote w:id="0" w:type="separator"/><w:footnote w:id="2">{paragraph("a note")}</w:footnote>'
    body = paragraph("Title", "U2") + paragraph("") + item + f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>" + changed
    write_docx(tmp_path / "a.docx", body, styles=styles, footnotes=note)
    with pytest.warns(UserWarning, match=r"a\.docx is read without its deleted text \(3 characters\)$"):
        text = text_of("a.docx")
    assert text == "## Title\n\n- one\tmore\n\na\tb\n\nnew[page 2] next[note 2]\n\n[note 2] a note\n\n"


def test_chapters_of_an_epub_come_in_the_order_of_the_book(text_of, tmp_path):
    chapters = [
        "<h1>One</h1><p>First<br/>line</p>",
        '<span epub:type="pagebreak" title="7"/><p>Second</p>',
        "<p>Third</p>",
    ]
    write_epub(tmp_path / "novel.epub", chapters)
    assert text_of("novel.epub") == "# One\n\nFirst\nline\n\n[page 7]\n\nSecond\n\nThird\n\n"


def test_a_protected_epub_is_refused(text_of, tmp_path):
    reference = '<encryption><EncryptedData><CipherReference URI="OPS/{}"/></EncryptedData></encryption>'
    for name, is_protected in (("font.otf", False), ("text/chapter0.xhtml", True), ("text%2Fchapter%30.xhtml", True)):
        write_epub(tmp_path / "novel.epub", ["<p>x</p>"], **{"META-INF/encryption.xml": reference.format(name)})
        if is_protected:
            with pytest.raises(InputError, match="protected against copying"):
                text_of("novel.epub")
        else:
            assert text_of("novel.epub") == "x\n\n"


def test_html_is_text_without_scripts(text_of):
    page = (
        "<!doctype html><title>A &amp; B</title><style>p {}</style><script>if (a < b) { x('</p>') }</script>"
        "<h2>Head</h2><p>One <b>bo</b>ld\n word.<ul><li>x<li>y</ul><pre>a\n  b</pre>"
        "<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table><svg/><p>Caf&eacute;"
    )
    assert text_of("page.html", page.encode()) == (
        "A & B\n\n## Head\n\nOne bold word.\n\n- x\n- y\n\na\n  b\n\n1\t2\n3\n\nCafé"
    )


def test_headings_and_items_without_text_mark_nothing(text_of):
    page = b"<h1><img src=a.png></h1><p>One</p><ul><li><img src=b.png></li></ul><p>Two</p><ul><li><p>3</p></li></ul>"
    assert text_of("page.html", page) == "One\n\nTwo\n\n- 3"


def test_empty_cells_of_html_keep_their_columns(text_of):
    rows = "<tr><th></th><th>May</th><th>June</th><tr><td>sold<td><td>3</tr><tr><td></td><td></td></tr>"
    page = f"<p>Sales<table>{rows}<tr><td>lost<td>1<td></td><td></td></tr></table><p>End"
    assert text_of("page.html", page.encode()) == "Sales\n\n\tMay\tJune\nsold\t\t3\nlost\t1\n\nEnd"


def test_a_cell_with_a_heading_is_prose(text_of):
    page = "<table><tr><td>Home<br>About<td><h2>Main</h2><p>One<p>Two<td>Ad</table><p>End"
    assert text_of("page.html", page.encode()) == "Home About\n\n## Main\n\nOne\n\nTwo\n\tAd\n\nEnd"


def test_a_raised_number_ends_with_its_line(text_of):
    page = "<p>10<sup>6</sup><ol><li>x<sup>2</sup></li></ol><h2>Two<sup>a</sup></h2><pre>25<sup>1</sup>\n</pre>"
    assert text_of("page.html", page.encode()) == "10^6\n\n1. x^2\n\n## Two^a\n\n25^1\n"


def test_a_formula_without_end_is_text(text_of):
    assert text_of("a.html", b"<p>x <math><mi>y</mi><p>key <b>417</b><p><math><mn>982") == "x y\n\nkey 417\n\n982"


def test_every_end_of_a_line_in_html_is_one(text_of):
    assert text_of("page.html", b"<pre>one\rtwo\r\nthree\nfour</pre>") == "one\ntwo\nthree\nfour"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("page.html", '<meta charset="iso-8859-1"><p>Café €'.encode("cp1252")),
        ("page.html", b'<meta http-equiv=x content="text/html; charset=koi8-r"><p>' + "Кафе".encode("koi8-r")),
        ("page.html", "<p>Café €".encode("utf-16")),
        *(("page.html", f'<meta charset="{name}"><p>Café €'.encode()) for name in ("UTF-16", "utf-16le", "utf-16be")),
        ("note.txt", "Café €".encode("utf-16")),
        ("note.txt", "Café €".encode("utf-32")),
        ("note.txt", "Café €".encode("utf-8-sig")),
        ("data.xml", '<?xml version="1.0" encoding="windows-1252"?>Café €'.encode("cp1252")),
    ],
)  # fmt: skip
def test_declared_encodings_are_read(text_of, name, content):
    text = text_of(name, content)
    assert text.endswith(("Café €", "Кафе"))
    assert "\ufeff" not in text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("note.txt", "Café".encode("cp1252"), r"is not UTF-8 text at 1 place.* `iconv -f WINDOWS-1252 -t UTF-8`"),
        ("page.html", "<p>Café".encode("cp1252"), r"is not UTF-8 text at 1 place.* `iconv -f WINDOWS-1252 -t UTF-8`"),
        ("page.html", b"<meta charset=rot13><p>x", "declares the charset 'rot13', which is unknown"),
        ("data.xml", b'<?xml version="1.0" encoding="klingon"?><a/>', "declares the encoding 'klingon', which is"),
        ("letter.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(999), r"old Office, .* save it as \.docx or PDF"),
        ("letter.txt", b"{\\rtf1 417\\par}", r"is a file in RTF, .* save it as \.docx or PDF"),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_refused_with_a_remedy(text_of, name, content, words):
    with pytest.raises(InputError, match=words):
        text_of(name, content)


def test_an_archive_that_is_no_document_is_refused(text_of, tmp_path):
    write_zip(tmp_path / "a.zip", {"a.txt": "hello"})
    with pytest.raises(InputError, match="neither DOCX nor EPUB; unpack it"):
        text_of("a.zip")


def test_markdown_and_source_stay_as_they_are(text_of):
    for name in ("a.md", "a.py", "a.xml"):
        assert text_of(name, b"# <b>One</b>\n") == "# <b>One</b>\n"


def test_the_error_names_the_extra_that_is_missing(text_of, tmp_path, monkeypatch):
    monkeypatch.setattr("edgekv.extras.find_spec", lambda _: None)
    monkeypatch.setattr("edgekv.documents.formats.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pypdfium2, which is not installed; pip install \"pypdfium2"):
        text_of("book.pdf", pdf_of([["hello"]]))
    assert not is_convertible(tmp_path / "book.pdf")
    write_epub(tmp_path / "novel.epub", ["<p>needs nothing more</p>"])
    assert text_of("novel.epub") == "needs nothing more\n\n"


def test_a_program_without_an_interpreter_says_so(text_of, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ConfigError, match="this program has none; give its text"):
        text_of("page.html", b"<p>x")


def test_what_the_system_refuses_is_said(text_of, monkeypatch):
    def refuse(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(conversion.subprocess, "Popen", refuse)
    with pytest.raises(
        InputError, match=r"page\.html cannot be converted, .*Resource temporarily unavailable; name fewer"
    ):
        text_of("page.html", b"<p>x")


def test_memory_of_the_host_does_not_grow_with_a_document(tmp_path):
    """Pieces are handed on as they come, whatever the number of pages."""
    path = tmp_path / "book.pdf"
    path.write_bytes(pdf_of([[f"line {i} of page {page}" for i in range(40)] for page in range(100)]))
    pieces = [len(piece) for piece in convert(path, format_of(path))]
    assert sum(pieces) > 4 * conversion.PIECE_BYTES
    assert max(pieces) <= conversion.PIECE_BYTES


def test_the_process_ends_with_its_text(tmp_path, monkeypatch):
    """A reader that stops early, as a cancelled reply does, leaves no process."""
    started = []
    monkeypatch.setattr(conversion.subprocess, "Popen", _noted(conversion.subprocess.Popen, started))
    path = tmp_path / "book.pdf"
    path.write_bytes(pdf_of([["x" * 80] * 40] * 500))
    pieces = convert(path, format_of(path))
    next(pieces)
    pieces.close()
    assert started[0].returncode is not None


def test_a_cancelled_copy_is_short_and_leaves_no_process(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(conversion.subprocess, "Popen", _noted(conversion.subprocess.Popen, started))
    path = tmp_path / "book.pdf"
    path.write_bytes(pdf_of([["x" * 80] * 40] * 500))
    cancelled = threading.Event()
    cancelled.set()
    with rereadable(path, cancelled) as copy:
        assert copy.read_bytes() == b""
    assert started[0].returncode is not None


def _noted(start, started):
    def popen(*arguments, **keywords):
        started.append(start(*arguments, **keywords))
        return started[-1]

    return popen


def test_no_warning_without_blank_pages(text_of):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text_of("book.pdf", pdf_of([["a"], ["b"]]))
