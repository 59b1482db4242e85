"""Long documents under the ceiling: the answer is right, and the process with the model stays below its plan."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from document_files import pdf_of, write_epub
from edgekv_command import run_command
from read_documents import begin_to_read

CEILING = "256MiB"
NOVEL = (Path(__file__).parents[2] / "examples" / "oz.txt").read_text("utf-8")
QUESTION = "What is the road to the City of Emeralds paved with?"
FACT = "yellow brick"
N_WORDS, BUDGET = 1000, 512


@pytest.fixture
def book(tmp_path):
    """A PDF of 500 pages with the last of the novel: what takes memory is the pages, what takes time is the words."""
    words = NOVEL.replace("\u2019", "'").encode("cp1252", "ignore").decode("cp1252").split()[-N_WORDS:]
    n_pages = 500
    pages = [[" ".join(words[i * len(words) // n_pages : (i + 1) * len(words) // n_pages])] for i in range(n_pages)]
    path = tmp_path / "book.pdf"
    path.write_bytes(pdf_of(pages))
    return path


@pytest.fixture
def novel(tmp_path):
    """An EPUB of a novel."""
    paragraphs = [textwrap.fill(text) for text in NOVEL.split("\n\n") if text.strip()]
    chapters = [paragraphs[i : i + 20] for i in range(0, len(paragraphs), 20)]
    return write_epub(tmp_path / "novel.epub", ["".join(f"<p>{text}</p>" for text in it) for it in chapters])


@pytest.mark.nightly  # a conversion's peak is below, a text's in test_ceiling.py, an answer's in tests/cli/test_demo.py
@pytest.mark.parametrize("format_", ["book", "novel"])
def test_a_command_answers_about_a_long_document(memory_ceiling, default_model, request, format_):
    path = request.getfixturevalue(format_)
    ended = memory_ceiling(CEILING).run(
        *(run_command, "ask", "-m", default_model, "-f", path, QUESTION, "--json", "--memory", CEILING),
        *("--budget", BUDGET, "--threads", "1"),
    )
    assert ended.value == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert FACT in report["answer"]
    assert report["prompt_tokens"] > report["budget_cells"]
    assert report["memory"]["peak_rss_bytes"] <= report["memory"]["planned_peak_bytes"]


def test_a_loaded_model_stays_below_its_plan_while_a_document_is_converted(memory_ceiling, default_model, book):
    ended = memory_ceiling(CEILING).run(begin_to_read, default_model, book, CEILING)
    n_tokens, planned_bytes = ended.value
    assert n_tokens > N_WORDS
    assert ended.peak_bytes <= planned_bytes
