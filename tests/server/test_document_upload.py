"""POST /documents: a document is sent as bytes, and its text comes back."""

from __future__ import annotations

import os
import warnings

import pytest
from asgi import until_nothing_is_held
from document_files import paragraph, pdf_of, write_docx
from starlette.requests import Request

from edgekv.server import document_upload
from edgekv.server.document_upload import PATH


def sent(ask, name, content):
    return ask(f"{PATH}?name={name}", content=content, method="POST")


@pytest.fixture
def pdf():
    pytest.importorskip("pypdfium2")
    return pdf_of([["The key lies", "under the stone."], [], ["The end."]])


def test_a_document_is_told_as_text(ask, pdf):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sent(ask, "../notes.pdf", pdf)
    assert found.status_code == 200, found.text
    told = found.json()
    assert told["name"] == "notes.pdf"
    assert "under the stone." in told["text"]
    assert "[page 3]" in told["text"]
    (note,) = told["notes"]
    assert note.startswith("notes.pdf has no text on 1 of its 3 pages")


def test_each_kind_is_read(ask, tmp_path):
    write_docx(tmp_path / "a.docx", paragraph("A heading") + paragraph("and more"))
    assert "A heading" in sent(ask, "a.docx", (tmp_path / "a.docx").read_bytes()).json()["text"]
    assert sent(ask, "a.html", b"<p>one <b>two</b></p><script>no</script>").json()["text"].strip() == "one two"
    assert sent(ask, "a.txt", "W\u00f6rter".encode()).json()["text"] == "W\u00f6rter"


def test_bytes_that_are_no_text_are_told(ask):
    found = sent(ask, "a.log", b"the key is 417\n" * 20 + b"\xff").json()
    assert found["text"] == "the key is 417\n" * 20 + "\ufffd"
    (note,) = found["notes"]
    assert note.startswith("a.log is not UTF-8 text at 1 place, read as \ufffd; ")


def test_a_name_that_no_file_can_have(ask):
    assert sent(ask, "a.t%00t", b"one").json() == {"name": "a.t\0t", "text": "one", "notes": []}


@pytest.mark.parametrize(
    ("name", "content", "status", "words"),
    [
        ("a.pdf", b"%PDF-1.7 and no more", 400, "a.pdf "),
        ("a.bin", b"\0\1\2", 400, "a.bin "),
        ("a.txt", b"", 400, "a.txt "),
        ("a.txt", b"word " * 300_000, 400, "a.txt has more than 1.0 MiB of text; attach less"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 400, "save it as .docx or PDF"),
    ],
    ids=["broken", "no text", "empty", "long", "old"],
)
def test_what_has_no_text_is_refused_by_name(ask, server, name, content, status, words):
    if name.endswith(".pdf"):
        pytest.importorskip("pypdfium2")
    found = sent(ask, name, content)
    assert found.status_code == status
    message = found.json()["error"]["message"]
    assert words in message
    assert os.fspath(server.state.settings.swap_dir) not in message
    assert os.listdir(server.state.settings.swap_dir) == []
    until_nothing_is_held(server)


def test_a_document_that_is_too_large_is_refused(ask, monkeypatch):
    monkeypatch.setattr(document_upload, "UPLOAD_BYTES", 1000)
    found = sent(ask, "a.txt", b"x" * 1001)
    assert found.status_code == 413
    assert "more than 1000" in found.json()["error"]["message"]
    assert sent(ask, "a.txt", b"x" * 1000).json()["text"] == "x" * 1000


def test_a_document_that_is_announced_as_too_large_is_refused_before_it_comes(ask, monkeypatch):
    async def nothing(request):
        raise AssertionError("the body was read")
        yield

    monkeypatch.setattr(Request, "stream", nothing)
    headers = {"Content-Type": "application/pdf", "Content-Length": str(document_upload.UPLOAD_BYTES + 1)}
    found = ask(f"{document_upload.PATH}?name=long.pdf", method="POST", content=b"x", headers=headers)
    assert (found.status_code, found.json()["error"]["code"]) == (413, "request_too_large")
