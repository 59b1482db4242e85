"""Grids: which cases they hold, and that none is measured twice."""

import functools
import io
import itertools

import pytest

import edgekv
from bench.papers.grid import PaperGrid
from edgekv.evals.grid import Grid, distinct_cases, in_process, run
from edgekv.evals.results import Results, key_of
from edgekv.evals.setting import DEFAULT, OpenRuntime, Setting
from edgekv.evals.suite import load_suite, suites
from edgekv.evals.tasks import Task
from edgekv.options import DEFAULT_POLICY, TURNED_POLICY


@pytest.fixture
def counted(monkeypatch, tiny_model):
    """A grid maker over a task that only notes what it was asked, and those notes."""
    asked = []

    def measure(case, _runtimes):
        if case.setting.budget == 13:
            raise edgekv.BudgetError("13 cells hold nothing")
        asked.append((case.setting.policy, case.length, case.seed, *case.params.values()))
        return {"score": case.seed % 2}

    monkeypatch.setattr(Grid, "tasks", {"counted": Task("counted", measure, None, {"depth": (0.5,)})})
    model = str(tiny_model())
    return lambda **fields: Grid(task="counted", model=model, **fields), asked


def test_every_combination_is_a_case_and_settings_stay_together(counted):
    make, _ = counted
    grid = make(
        policies=("full", "sink"), budgets=(64, 96), lengths=(100, 200), samples=3, seed=5, params={"depth": (0.1, 0.9)}
    )
    cases = grid.cases()
    # a full cache has no budget, so it is read once
    assert len(cases) == (1 + 2) * 2 * 2 * 3
    assert len({key_of(case.config()) for case in cases}) == len(cases)
    changes = sum(a.setting != b.setting for a, b in itertools.pairwise(cases))
    assert changes == 2
    assert {case.seed for case in cases} == {5, 6, 7}


def test_what_has_a_result_is_not_measured_again(counted, tmp_path):
    make, asked = counted
    cases = make(policies=("sink", "random"), samples=4).cases()
    with Results(tmp_path / "results.jsonl") as results:
        assert list(run(cases[:3], results, in_process)) == cases[:3]
    with Results(tmp_path / "results.jsonl") as results:
        assert list(run(cases, results, in_process)) == cases
        assert [results.get(case.config()) for case in cases] == [{"score": case.seed % 2} for case in cases]
    assert len(asked) == len(set(asked)) == 8


def test_what_two_grids_have_is_measured_once(counted, tmp_path):
    make, asked = counted
    first, second = make(policies=("full", "sink"), samples=2, n_sink=0), make(policies=("full", "random"), samples=3)
    cases = distinct_cases([first, second])
    with Results(tmp_path / "results.jsonl") as results:
        assert list(run(cases, results, in_process)) == cases
    assert [(policy, seed) for policy, _, seed, _ in asked] == [
        *(("full", 0), ("full", 1), ("sink", 0), ("sink", 1)),
        *(("full", 2), ("random", 0), ("random", 1), ("random", 2)),
    ]


def test_what_was_measured_before_an_error_is_kept(counted, tmp_path):
    make, asked = counted
    cases = make(policies=("sink",), samples=3).cases()
    with Results(tmp_path / "results.jsonl") as results:
        running = run(cases, results, in_process)
        next(running)
        with pytest.raises(KeyboardInterrupt):
            running.throw(KeyboardInterrupt)
        assert [results.get(case.config()) is not None for case in cases] == [True, False, False]
    assert len(asked) == 1


def test_metrics_are_part_of_a_configuration_only_where_they_are_measured(tiny_model):
    model = str(tiny_model())
    (plain,), (more,), (same,) = (
        PaperGrid(task="needle", model=model, policies=("full",), samples=1, metrics=metrics).cases()
        for metrics in ((), ("attention-mass", "answer-nll"), ("answer-nll", "attention-mass", "answer-nll"))
    )
    assert more.config() == same.config() == {**plain.config(), "metrics": ["answer-nll", "attention-mass"]}
    assert not {"metrics", "data"} & plain.config().keys()


def test_a_setting_that_cannot_be_is_a_result(counted, tmp_path):
    make, _ = counted
    cases = make(policies=("sink",), budgets=(13, 64), samples=1).cases()
    with Results(tmp_path / "results.jsonl") as results:
        list(run(cases, results, in_process))
        assert [results.get(case.config()) for case in cases] == [{"refused": "13 cells hold nothing"}, {"score": 0}]


def test_the_default_is_what_a_runtime_chooses(tiny_model):
    setting = Setting(model=str(tiny_model()), budget=64, block=32)
    assert setting.policy == DEFAULT
    assert setting.plan(100, threads=1).policy in {DEFAULT_POLICY, TURNED_POLICY}
    assert setting.plan(100, threads=1).policy == edgekv.plan(setting.model, threads=1).policy


@pytest.mark.parametrize("name", suites())
def test_suites_measure_the_default_policy_by_that_name(name):
    for grid in load_suite(name):
        assert DEFAULT in grid.policies
        assert DEFAULT_POLICY not in grid.policies


def test_only_a_policy_may_be_the_default():
    with pytest.raises(edgekv.PolicyError, match="'default' is unknown"):
        Grid(task="needle", focus_policy=DEFAULT)


@pytest.mark.parametrize("focus", ["whole", "all", "all-whole"])
def test_a_focus_that_is_gone_is_no_text(focus):
    with pytest.raises(edgekv.ConfigError, match=f"focus='{focus}' is gone; give off, question, turn"):
        Grid(task="needle", focus=("off", focus))


def test_without_a_gpu_layers_on_one_are_no_result(counted, tmp_path, monkeypatch):
    make, asked = counted
    monkeypatch.setattr("edgekv.planning.planner.has_gpu", lambda: False)
    measured = functools.partial(in_process, gpu_layers=2)
    with Results(tmp_path / "results.jsonl") as results:
        with pytest.raises(edgekv.ConfigError, match="gpu_layers=2 needs a GPU"):
            list(run(make(samples=1).cases(), results, measured))
        assert not asked
        assert len(list(run(make(samples=1).cases(), results, in_process))) == 2


def test_layers_on_a_gpu_are_those_of_every_runtime(tiny_model, monkeypatch):
    opened = []
    monkeypatch.setattr("edgekv.planning.planner.has_gpu", lambda: True)
    monkeypatch.setattr(Setting, "open", lambda self, n_tokens, **options: opened.append(options) or io.BytesIO())
    with OpenRuntime(threads=1, gpu_layers=2) as runtimes:
        runtimes.get(Setting(model=str(tiny_model())), 100)
    assert opened == [{"threads": 1, "gpu_layers": 2}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 0}, "samples=0"),
        ({"budgets": (64, 0)}, "budget=0"),
        ({"lengths": (-1,)}, "length=-1"),
        ({"archive": "lots"}, "'lots'"),
        ({"params": {"depht": (0.1,)}}, "'depht' is no parameter of counted; possible: depth"),
        ({"params": {"depth": (0.1, "deep")}}, "depth='deep' is not possible; give a number"),
    ],
)
def test_impossible_grids_are_refused(counted, fields, message):
    make, _ = counted
    with pytest.raises(edgekv.ConfigError, match=message):
        make(**fields)


def test_unknown_kinds_of_ruler_are_refused_before_the_first_case():
    with pytest.raises(edgekv.ConfigError, match="kind='niah_singel_1' is unknown; possible: niah_single_1"):
        Grid(task="ruler", params={"kind": ("vt", "niah_singel_1")})


def test_unknown_tasks_are_refused():
    with pytest.raises(edgekv.ConfigError, match="'riddles' is unknown; possible: needle"):
        Grid(task="riddles")
