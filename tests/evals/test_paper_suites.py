"""Suites of the papers' tables: in their own setting, not in edgekv's."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.papers import perturbation
from bench.papers.grid import PERTURBATION, SUITES, PaperGrid
from edgekv.evals.case import Case
from edgekv.evals.setting import Setting
from edgekv.evals.suite import load_suite, suites
from edgekv.policies import parse_policy

PAPERS = ("keydiff", "caote", "ahakv", "criticalkv", "adakv")
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def of_paper(name, **fields):
    return load_suite(name, folder=SUITES, kind=PaperGrid, **fields)


@pytest.mark.parametrize("paper", PAPERS)
def test_nothing_is_protected_but_by_the_policy(paper):
    for grid in of_paper(paper):
        assert (grid.n_sink, grid.recent) == (0, 0)
        for setting in grid.settings():
            assert setting.block == 128
            if grid.task == "perturbation":  # one eviction, of cells that were all read
                continue
            assert setting.evict_every == 1
            assert setting.reposition == "never"
            if not setting.holds_text:
                options = setting.options(grid.lengths[0] if grid.lengths else 1000)
                policy = parse_policy(setting.policy)
                assert options.spare_cells == 1
                assert options.recent_cells(setting.budget) == policy.recent(setting.budget)
                assert policy.sinks(options.n_sink) == (4 if policy.name == "sink" else 0)


def test_each_paper_is_a_suite():
    assert suites(SUITES) == sorted((*PAPERS, "policies"))
    assert {grid.task for grid in of_paper("policies")} == {"perturbation"}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.toml")), ids=lambda path: path.stem)
def test_suites_of_the_results_know_the_policies_of_now(path, monkeypatch):
    monkeypatch.chdir(RESULTS.parents[1])  # their data have paths from the root
    for grid in load_suite(str(path), kind=PaperGrid):
        for setting in grid.settings():
            for spec in {setting.policy, setting.focus_policy} - {"full", "default", None}:
                parse_policy(spec)


def test_fewer_texts_are_the_first_ones():
    whole, first = (of_paper("caote", samples=n) for n in (None, 1))
    assert [grid.samples for grid in first] == [1] * len(whole)
    assert {case.seed for grid in first for case in grid.cases()} == {0}


def test_a_field_with_several_values_may_have_one(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[[grid]]\ntask = "needle"\npolicies = "keydiff"\nbudgets = 64\ndepth = 0.5')
    (grid,) = load_suite(str(path))
    assert (grid.policies, grid.budgets, grid.params) == (("keydiff",), (64,), {"depth": (0.5,)})


def test_how_often_is_evicted_is_part_of_a_result_only_if_given():
    assert "evict_every" not in Setting().as_dict()
    assert Setting(evict_every=1).as_dict() == Setting().as_dict() | {"evict_every": 1}
    assert "evict_every" not in Setting(policy="full", evict_every=1).as_dict()


def test_perturbation_tells_in_how_many_heads_less_is_lost():
    def case(policy):
        return Case(PERTURBATION, Setting(policy=policy, budget=64), 256, 0, None, {})

    found = {
        "snapkv": {"layers": [0.2, 0.4], "heads": [[0.1, 0.3], [0.4, 0.4]]},
        "tova": {"layers": [0.1, 0.4], "heads": [[0.05, 0.2], [0.3, 0.5]]},
    }
    table = perturbation.table([(case(policy), result) for policy, result in found.items()])
    heads = table.headers.index("heads that lose less")
    assert [row[heads] for row in table.rows] == ["0%", "75%"]
    assert [line["heads_with_less"] for line in table.data] == [0.0, 0.75]
    assert [line["layers_with_less"] for line in table.data] == [0.0, 0.5]


def test_layers_may_have_different_numbers_of_heads():
    settings = [Setting(policy=policy, budget=64) for policy in ("snapkv", "tova")]
    heads = [[[0.1], [0.4, 0.4, 0.4]], [[0.05], [0.3, 0.5, 0.5]]]
    measured = [
        (Case(PERTURBATION, setting, 256, seed, None, {}), {"layers": [0.2, 0.4], "heads": losses})
        for setting, losses in zip(settings, heads, strict=True)
        for seed in (0, 1)
    ]
    assert [line["heads_with_less"] for line in perturbation.table(measured).data] == [0.0, 0.5]
