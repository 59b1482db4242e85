"""The defaults for reading, at a size that tells them from older ones (docs/results/default-model.md)."""

from __future__ import annotations

import pytest

from bench.papers.grid import PaperGrid
from edgekv.evals.grid import Grid, in_process

FEW = {"budgets": (192,), "lengths": (500,), "samples": 5, "seed": 100}


def found(model, focus):
    grid = Grid(task="needle", model=str(model), policies=("keydiff",), focus=(focus,), **FEW)
    return sum(result["score"] for _, result in in_process(grid.cases(), threads=1))


@pytest.mark.nightly  # README's command, too, finds what a question is about (tests/cli/test_demo.py)
def test_reading_with_a_question_in_mind_finds_what_keys_alone_lose(default_model):
    question, keys = (found(default_model, focus) for focus in ("question", "off"))
    assert question >= 3 > keys


@pytest.mark.nightly  # a claim; test_oracle.py tests how an oracle chooses
def test_an_oracle_keeps_what_keys_alone_lose(default_model):
    grid = PaperGrid(
        task="needle",
        model=str(default_model),
        policies=("full", "keydiff"),
        metrics=("answer-nll", "attention-mass"),
        oracle=True,
        budgets=(64,),
        lengths=(200,),
        samples=1,
    )
    found = {}
    for case, result in in_process(grid.cases(), threads=1):
        found.setdefault(case.setting.policy, []).append(result)
    for full, keys, oracle in zip(*found.values(), strict=True):
        assert full["mass"] > oracle["mass"] > keys["mass"]
        assert oracle["nll"] < full["nll"] + 0.3 < keys["nll"]
