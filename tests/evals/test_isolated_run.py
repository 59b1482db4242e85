"""Texts read in a process of their own: what is told of speed and memory, and that answers are the same."""

from __future__ import annotations

import functools
import itertools
import json

import pytest

import edgekv
from edgekv.evals import isolated_run
from edgekv.evals.grid import Grid, in_process, run
from edgekv.evals.isolated_run import RunStats, Tenths
from edgekv.evals.results import Results


@pytest.fixture
def read(monkeypatch):
    """Reads a text of so many blocks of 10 tokens, with clock and peak counting on at every look; gives the figures."""

    def read(n_blocks):
        seconds, peaks = itertools.count(), itertools.count(1000)
        monkeypatch.setattr(isolated_run.time, "perf_counter", lambda: next(seconds))
        monkeypatch.setattr(isolated_run, "peak_resident_bytes", lambda: next(peaks))
        tenths = Tenths()
        for i in range(1, n_blocks + 1):
            tenths(edgekv.Progress(10 * i, 10 * n_blocks, 0, 0))
        return tenths.figures()

    return read


def test_speeds_are_those_of_the_first_and_the_last_tenth(read):
    # looked at after blocks 1, 10, 90 and 100, a second apart, with a peak of 1000, 1001, ... bytes
    assert read(100) == {
        "tokens": 1000,
        "first_tok_per_s": 90,
        "last_tok_per_s": 100,
        "growth": 1003 / 1001 - 1,
    }


@pytest.mark.parametrize("n_blocks", [1, 3, 9, 10, 11])
def test_a_text_of_fewer_than_ten_blocks_has_no_tenths(read, n_blocks):
    found = read(n_blocks)
    assert (found["growth"] is None) == (found["first_tok_per_s"] is None) == (n_blocks < 10)
    assert found["tokens"] == 10 * n_blocks


def test_of_several_texts_speeds_are_medians_and_memory_is_the_most():
    figures = [
        {"first_tok_per_s": first, "last_tok_per_s": last, "growth": growth, "peak_bytes": peak << 20}
        for first, last, growth, peak in (
            (100, 90, 0.0, 7),
            (50, 55, 0.01, 9),
            (80, 80, 0.001, 8),
            (None, None, None, 5),
        )
    ]
    stats = RunStats.of(figures)
    assert stats == RunStats(80, 80, 1.0, 9 << 20, 0.01)
    assert stats.cells() == ("80", "80", "1.00", "9.0", "+1.00%")
    assert RunStats.of(figures[3:]).cells() == ("", "", "", "5.0", "")


@pytest.fixture
def measured(tiny_model, tmp_path):
    """The results of a needle grid over a tiny model, in the order of its cases."""
    model = str(tiny_model(n_layer=2, n_ctx_train=2048))

    def measured(**fields):
        fields = {"policies": ("keydiff",), "budgets": (64,), "blocks": (32,), "lengths": (400,), "recent": 8} | fields
        cases = Grid(task="needle", model=model, samples=1, **fields).cases()
        with Results(tmp_path / "results.jsonl") as results:
            list(run(cases, results, functools.partial(in_process, threads=1)))
            return [results.get(case.config()) for case in cases]

    return measured


@pytest.mark.parametrize("focus", [pytest.param("off", marks=pytest.mark.nightly), "question"])
def test_a_process_of_its_own_answers_the_same_and_tells_what_it_took(measured, focus):
    where = {"policies": ("full", "keydiff"), "focus": (focus,), "params": {"needles": (2,)}}
    here, under = measured(**where), measured(**where, memory="2GiB")
    for known, found in zip(here, under, strict=True):
        stats = found.pop("alone")
        assert found == known
        assert stats["tokens"] > 400
        assert 10 << 20 < stats["planned_bytes"] < 2 << 30
        assert 10 << 20 < stats["peak_bytes"] < 2 << 30
        assert stats["first_tok_per_s"] > 0
        assert stats["last_tok_per_s"] > 0
        assert stats["growth"] > -0.01  # the kernel counts pages by the dozen, on each processor a thread ran on


def test_a_ceiling_that_is_too_low_is_a_result(measured):
    ((found,), (other,)) = measured(memory="1MiB"), measured(memory="2GiB")
    assert "memory=1.0 MiB" in found["refused"]
    assert "alone" in other


def test_a_ceiling_that_this_machine_does_not_have_is_none(measured, monkeypatch):
    def no_room(*_, **__):
        raise edgekv.CeilingError("no room", required_bytes=2, ceiling_bytes=1)

    monkeypatch.setattr(edgekv, "Runtime", no_room)
    with pytest.raises(edgekv.CeilingError, match="no room"):
        measured()


def test_a_ceiling_is_part_of_a_configuration_only_where_one_is_given(tiny_model):
    model = str(tiny_model())
    for policy in ("full", "keydiff"):
        (plain,), (under,) = (
            Grid(task="needle", model=model, policies=(policy,), samples=1, memory=memory).cases()
            for memory in (None, "1GiB")
        )
        assert json.loads(json.dumps(under.config())) == {**plain.config(), "memory": "1GiB"}
        assert "memory" not in plain.config()


@pytest.mark.parametrize(
    ("task", "memory", "message"),
    [
        ("perplexity", "1GiB", "memory=1GiB with the task perplexity; a ceiling is possible with needle, ruler"),
        ("needle", "much", "much"),
        ("needle", "0%", "more than 0 %"),
    ],
)
def test_impossible_ceilings_are_refused(task, memory, message):
    with pytest.raises(edgekv.ConfigError, match=message):
        Grid(task=task, memory=memory)
