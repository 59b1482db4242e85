"""Documents in every command that takes files."""

from __future__ import annotations

import json

import pytest
from command import SMALL, run_here, words
from document_files import paragraph, pdf_of, write_docx, write_epub

REPLY = ["--max-tokens", "3"]


@pytest.fixture
def ask(model):
    """Runs `edgekv ask` with a tiny model."""

    def run(*arguments):
        return run_here("ask", *arguments, "-m", model, *SMALL, *REPLY)

    return run


@pytest.fixture
def folder(tmp_path):
    """A folder with one text in three formats, and as a text."""
    text = words(60)
    place = tmp_path / "texts"
    place.mkdir()
    (place / "a.pdf").write_bytes(pdf_of([[text[:300]], [text[300:]]]))
    write_docx(place / "b.docx", paragraph(text))
    write_epub(place / "c.epub", [f"<p>{text}</p>"])
    (place / "d.txt").write_text(text)
    return place


def prompt_tokens(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["prompt_tokens"]


def test_a_document_is_read_as_its_text(ask, folder, tmp_path):
    (tmp_path / "as-text.txt").write_text(f"{words(60)}\n\n")
    expected = prompt_tokens(ask("What?", "--json", "-f", tmp_path / "as-text.txt"))
    for name in ("b.docx", "c.epub"):
        result = ask("What?", "--json", "-f", folder / name)
        assert prompt_tokens(result) == expected
        assert f"{name} is converted: " in result.stderr


def test_a_folder_brings_its_documents(ask, folder):
    named = [it for path in sorted(folder.iterdir()) for it in ("-f", path)]
    together = ask("What?", "--json", "-f", folder)
    assert prompt_tokens(together) == prompt_tokens(ask("What?", "--json", *named))
    assert "left out" not in together.stderr


def test_pages_without_text_are_told(ask, tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf_of([["one"], []]))
    result = ask("What?", "-f", tmp_path / "a.pdf")
    assert result.returncode == 0
    assert "a.pdf has no text on 1 of its 2 pages (2), as scans have none" in result.stderr


def test_a_broken_document_is_refused_before_the_model_is_loaded(folder):
    (folder / "a.pdf").write_bytes(b"%PDF-1.7\n")
    result = run_here("ask", "What?", "-f", folder / "a.pdf", "-m", "no-such-model", stdin=None)
    assert result.returncode == 2
    assert "a.pdf is not a whole PDF" in result.stderr


def test_a_document_that_is_piped_in_is_told(model, folder):
    with (folder / "a.pdf").open("rb") as file:
        result = run_here("ask", "What?", "-m", model, *SMALL, stdin=file)
    assert result.returncode == 2
    assert "standard input is a document, such as a PDF, and no text; store it as a file" in result.stderr


def test_a_document_is_read_once(model, folder, tmp_path):
    options = ["-m", model, *SMALL]
    here = {"XDG_DATA_HOME": str(tmp_path)}
    assert run_here("read", "--save", "kept", "-f", folder / "a.pdf", *options, **here).returncode == 0
    (folder / "a.pdf").unlink()
    assert run_here("ask", "--from", "kept", "What?", *options, *REPLY, **here).returncode == 0


def test_a_chat_takes_documents(model, folder, tmp_path):
    said = tmp_path / "said.json"
    lines = f"What?\n/read {folder}/a.pdf\nAnd this?\n/save {said}\n"
    shown = run_here("chat", "-f", folder / "c.epub", "-m", model, *SMALL, *REPLY, stdin=lines)
    assert shown.returncode == 0, shown.stderr
    first, _, second, _ = (it["content"] for it in json.loads(said.read_text())["messages"])
    assert first.startswith(f"[file c.epub]\n{words(60)}")
    assert second.startswith("[file a.pdf]\n[page 1]\nword0 ")
    assert "[page 2]" in second
    assert second.endswith("And this?")
