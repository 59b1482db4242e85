"""The defaults for reading, at the smallest size that tells them from what they replaced (docs/policies.md)."""

from __future__ import annotations

from edgekv.evals.grid import Grid, in_process

FEW = {"budgets": (192,), "lengths": (500,), "samples": 5, "seed": 100}


def found(model, focus):
    grid = Grid(task="needle", model=str(model), policies=("keydiff",), focus=(focus,), **FEW)
    return sum(result["score"] for _, result in in_process(grid.cases(), threads=1))


def test_reading_with_a_question_in_mind_finds_what_keys_alone_lose(default_model):
    general, question, keys = (found(default_model, focus) for focus in ("general", "question", "off"))
    assert min(general, question) >= 3 > keys
