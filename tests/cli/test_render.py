"""The lines after a reply."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

import edgekv
from edgekv.cli import render

STATS = edgekv.Stats(
    cells_used=131_072,
    budget_cells=131_072,
    tokens_seen=1_234_567,
    generated_tokens=1,
    finish_reason="context",
    peak_rss_bytes=99_999 << 20,
)
PLAN = SimpleNamespace(block=128, ceiling_bytes=100_000 << 20)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_footer_is_broken_between_two_figures_only(monkeypatch, capsys, width):
    monkeypatch.setattr(render, "console", Console(stderr=True, highlight=False, width=width))
    render.print_footer(STATS, PLAN)
    lines = capsys.readouterr().err.splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) == {40: 5, 80: 3, 200: 1}[width]
    assert " · ".join(lines) == (
        "trained context full · only 11% kept: do not rely on it · remembers 131,072 of 1,234,567 tokens · "
        "prompt 0 tok/s · "
        "generation 0 tok/s · peak 99999.0 MiB of 100000.0 MiB"
    )


def test_the_first_token_is_no_part_of_the_speed_of_generation():
    """Reading the prompt brings it."""
    stats = replace(STATS, generated_tokens=11, decode_s=2.0, read_tokens=600, prefill_s=3.0)
    assert "prompt 200 tok/s" in render.figures_of(stats, PLAN)
    assert "generation 5 tok/s" in render.figures_of(stats, PLAN)


def test_what_generated_nothing_has_no_speed_of_it():
    assert not any("generation" in figure for figure in render.figures_of(replace(STATS, generated_tokens=0), PLAN))


@pytest.mark.parametrize(
    ("budget", "seen", "warns"),
    [(127, 128, True), (128, 129, False), (127, 127, False)],
    ids=["few", "enough", "all kept"],
)
def test_few_cells_are_told_where_some_were_evicted(budget, seen, warns):
    stats = edgekv.Stats(cells_used=min(budget, seen), budget_cells=budget, tokens_seen=seen, finish_reason="stop")
    assert any("few cells" in figure for figure in render.figures_of(stats, PLAN)) == warns


def test_what_the_archive_has_is_remembered():
    stats = edgekv.Stats(cells_used=128, budget_cells=64, tokens_seen=9_000, recallable_tokens=8_872, recalls=2)
    stats = replace(stats, recalled_cells=64, recall_s=0.51, finish_reason="end")
    figures = render.figures_of(stats, PLAN)
    assert figures[:2] == ["remembers 9,000 of 9,000 tokens, 8,872 of them archived", "64 cells recalled in 0.5 s"]
    lost = replace(stats, recallable_tokens=0, archive_failure="it is full; tokens from 8 on are forgotten")
    figures = render.figures_of(lost, PLAN)
    assert figures[0] == "few cells: do not rely on it (edgekv plan)"
    assert "archive: it is full; tokens from 8 on are forgotten" in figures


def test_the_bar_counts_tokens_and_then_heads(monkeypatch):
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=200)
    with render.reading_bar(console) as progress:
        progress(edgekv.Progress(60, 100, 8, 8))
        progress(edgekv.Progress(90, 100, 8, 8, 3, 30))
    text = drawn.getvalue()
    assert "recalling" in text
    assert "3/30 heads" in text


def test_an_item_wider_than_the_line_has_one_to_itself():
    assert render.packed(["a", "b" * 30, "c", "d"], 10) == ["a", "b" * 30, "c · d"]
    assert render.packed([], 10) == []


def test_names_with_brackets_are_shown_as_they_are(monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(render, "console", console)
    with render.measuring_bar([1, 1]) as bar:
        bar(1, "a request [/b] of a batch")
    assert "a request [/b] of a batch" in console.file.getvalue()
