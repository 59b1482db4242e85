"""`python -m bench.papers`: suites with tasks, a metric and an oracle that `edgekv eval` does not have."""

from __future__ import annotations

import json
import pickle

import pytest
from typer.testing import CliRunner

from bench.papers.__main__ import app
from bench.papers.grid import PaperGrid

SHARED = "blocks = [32]\nrecent = 8\nsamples = 1\n"
NEEDLE = (
    '[[grid]]\ntask = "needle"\npolicies = ["full", "keydiff", "sink"]\nbudgets = [64]\nlengths = [120]\nneedles = 2\n'
    f'metrics = ["answer-nll", "attention-mass"]\noracle = true\n{SHARED}'
)
PERTURBATION = '[[grid]]\ntask = "perturbation"\npolicies = ["keydiff", "random"]\nbudgets = [64]\nlengths = [128]\n'


@pytest.fixture
def run(tiny_model, tmp_path, monkeypatch):
    """Runs a suite over a tiny model in an empty folder; returns what was printed."""
    model = str(tiny_model(n_layer=2, n_ctx_train=2048))
    monkeypatch.chdir(tmp_path)

    def run(suite, *arguments):
        (tmp_path / "suite.toml").write_text(suite)
        done = CliRunner().invoke(app, ["suite.toml", "--model", model, "--threads", "1", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def tables(run, suite, *arguments):
    return json.loads(run(suite, "--json", *arguments))["tables"]


def test_an_oracle_and_the_attention_that_is_left_are_in_the_table_and_kept(run, tmp_path):
    printed = run(NEEDLE)
    assert all(column in printed for column in ("below oracle", "attention left", "above full", "above oracle"))
    kept = (tmp_path / "edgekv-eval.jsonl").read_text()
    full, keydiff, sink, oracle = tables(run, NEEDLE)["needle"]
    assert (tmp_path / "edgekv-eval.jsonl").read_text() == kept
    assert [len(json.loads(line)["result"]["mass_by_question"]) for line in kept.splitlines()] == [2] * 4
    assert full["mass"] == pytest.approx(1)
    assert max(keydiff["mass"], sink["mass"]) < oracle["mass"] < 1
    assert keydiff["nll_above_oracle"] == pytest.approx(keydiff["nll"] - oracle["nll"])


def test_perturbation_protects_what_it_is_told_to(run):
    plain, more = (
        tables(run, f"{PERTURBATION}blocks = [32]\nsamples = 1\nrecent = {n}")["perturbation"] for n in (0, 32)
    )
    assert plain[1]["layers"] != more[1]["layers"]  # random protects nothing itself
    assert "refused: kv_type=q8_0" in run(PERTURBATION + SHARED + 'kv_types = ["q8_0"]')


@pytest.mark.parametrize("task", ["needle", "perturbation"])
def test_cases_go_to_other_processes_with_their_tasks(task, tiny_model):
    grid = PaperGrid(task=task, model=str(tiny_model()), policies=("keydiff",), samples=1)
    (case,) = grid.cases()
    other = pickle.loads(pickle.dumps(case))
    assert other.config() == case.config()
    assert other.task.table is case.task.table
