"""Pages of docs/ are short, their sentences can be read once, and links lead to a file and a heading."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("prose_figures", ROOT / "scripts" / "prose_figures.py")
prose_figures = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = prose_figures
_spec.loader.exec_module(prose_figures)

READ_ONCE = [page for page in prose_figures.pages() if page.kind in ("user", "reference")]
USERS = [page for page in READ_ONCE if page.kind == "user"]
MAP = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
MAX_WORDS = 30
LATE_SUBJECT = re.compile(r"(Of|What|Where) [^?]*$|.*\band so (do|does|is|are) \w+( \w+)?\.$")
FILES = [
    ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "native/README.md")
]
FILES += sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", USERS, ids=lambda page: page.name)
def test_a_page_for_users_is_short(page):
    assert page.n_lines <= prose_figures.MAX_LINES


@pytest.mark.parametrize("page", READ_ONCE, ids=lambda page: page.name)
def test_sentences_are_short_and_have_their_subject_early(page):
    assert [sentence for sentence in page.sentences if len(sentence.split()) > MAX_WORDS] == []
    assert [sentence for sentence in page.sentences if LATE_SUBJECT.match(sentence)] == []


@pytest.mark.parametrize("page", READ_ONCE, ids=lambda page: page.name)
def test_the_map_names_every_page(page):
    assert f"]({page.name})" in MAP or page.name == "README.md"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(file):
    text = re.sub(r"`[^`\n]*`", "code", prose_figures.without_code(file.read_text(encoding="utf-8")))
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text)
    targets = [((file.parent / path).resolve() if path else file, heading) for path, heading in links]
    assert [str(path) for path, _ in targets if not path.exists()] == []
    assert [f"{path}#{heading}" for path, heading in targets if heading and heading not in headings(path)] == []


def headings(path):
    """Return the anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_sentences_are_told_apart():
    code = "\n    code is no sentence here\n\n```\nthis is code as well\n```\n"
    words = "One sentence, two words. Another one with `a.b. c`!"
    text = f"# A title of four words\n\n{words}\n{code}- An item\n  goes on here.\n"
    assert list(prose_figures.sentences(text)) == [
        "One sentence, two words.",
        "Another one with Code!",
        "An item goes on here.",
    ]


def test_cells_are_sentences_and_lists_of_names_one_word():
    text = "| a cell of four words | `a`, `b` and `c` are names |\n|---|---|\n| 1 | `x|y` |\n"
    assert list(prose_figures.sentences(text)) == ["a cell of four words"]


def test_the_script_prints_a_line_for_each_page_and_marks_long_ones(monkeypatch, capsys):
    page = prose_figures.Page("long.md", "user", prose_figures.MAX_LINES + 1, ("A sentence of five words.",))
    monkeypatch.setattr(prose_figures, "pages", lambda: [page, replace(page, name="short.md", n_lines=9)])
    monkeypatch.setattr(sys, "argv", ["prose_figures.py", "--sentences", "1"])
    prose_figures.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["long.md", "user", "151!", "5", "5"]
    assert lines[2] == ["5", "A", "sentence", "of", "five", "words."]
    assert lines[3] == ["short.md", "user", "9", "5", "5"]
    assert ["user:", "160", "lines", "in", "2", "pages"] in lines
