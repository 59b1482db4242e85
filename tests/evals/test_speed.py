"""Measuring speed and memory: what one process measures, in which order, and what the figures come to."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

import edgekv
from edgekv.binding.model import Model
from edgekv.errors import BudgetError, ConfigError, InputError, PolicyError, WorkerError
from edgekv.evals import speed
from edgekv.evals.fresh import in_fresh_process
from edgekv.evals.setting import Setting
from edgekv.evals.speed import ALIKE, PEERS, STOCK
from edgekv.evals.speed_run import COMPARED, FIGURES, SpeedRun, grouped, in_turn, prompts
from edgekv.options import Options


def groups_of(model=None, **given):
    settings = {"policies": ["keydiff", "full"], "budgets": [64], "blocks": [16, 32], "lengths": [150, 300]}
    shared = {"kv_type": "f16", "n_generate": 4, "threads": 1}
    return grouped(**settings | given, model=None if model is None else str(model), **shared)


@pytest.fixture
def vocabulary(tiny_model):
    with Model(tiny_model(), Options(), no_alloc=True) as model:
        yield model


# ---- one case ----


def test_a_case_measures_edgekv_and_llama_cpp_on_the_same_prompt(vocabulary):
    (group,) = groups_of(vocabulary.path, blocks=[16], lengths=[300])
    text = prompts(vocabulary, None, [300])[300]
    stock, alike, keydiff, full = (speed.measure(case, text) for case in group)
    assert stock.keys() == keydiff.keys() >= {*FIGURES}
    for figures in (stock, alike, keydiff, full):
        assert figures["prompt_tokens"] == len(vocabulary.tokenize(text, begin=True))
        assert figures["ttft_s"] == figures["prefill_s"] + figures["first_sample_s"]
        assert figures["prefill_tok_per_s"] == figures["prompt_tokens"] / figures["prefill_s"]
        assert figures["decode_tok_per_s"] == 4 / figures["decode_s"]
        assert min(figures["first_sample_s"], figures["decode_s"]) > 0
        assert figures["score_s"] + figures["compact_s"] < figures["prefill_s"]
        assert 20 << 20 < figures["peak_bytes"] < 1 << 30
    assert keydiff["evictions"] == -(-(figures["prompt_tokens"] - 64) // 16)
    assert keydiff["score_s"] > 0
    for unevicted in (stock, alike, full):
        assert unevicted["evictions"] == unevicted["score_s"] == unevicted["compact_s"] == 0


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_llama_cpp_set_alike_has_its_weights_as_edgekv_does(tiny_model, kind):
    model = tiny_model(n_embd=128, head_dim=64, quantization=kind)
    case = groups_of(model)[0][1]
    repacks = edgekv.plan(model, memory="100%", threads=1).repack
    assert (case.policy, case.peer.options.repack, case.peer.n_batch) == (ALIKE, repacks, 16)
    assert case.peer.options.maps_weights is not repacks


def kill_oneself():
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(size):
    raise edgekv.CeilingError("too large", required_bytes=size, ceiling_bytes=1)


def test_a_process_that_is_killed_is_an_error():
    with pytest.raises(WorkerError, match=r"was killed by SIGKILL .*; was there enough memory"):
        in_fresh_process(kill_oneself)


def test_what_is_raised_in_a_process_is_raised_here():
    with pytest.raises(edgekv.CeilingError, match="too large") as caught:
        in_fresh_process(refuse, 5)
    assert caught.value.required_bytes == 5


def test_a_program_without_an_interpreter_says_so(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(WorkerError, match="this program has none; use an installed edgekv"):
        in_fresh_process(refuse, 5)


# ---- many cases ----


def test_groups_hold_every_combination_beside_both_of_llama_cpp():
    groups = groups_of(policies=["keydiff", "full", "keydiff"], budgets=[64, 128])
    assert [[(case.n_tokens, case.block) for case in group] for group in groups] == [
        [place] * 5 for place in ((150, 16), (150, 32), (300, 16), (300, 32))
    ]
    for group in groups:
        assert [case.name for case in group] == [*PEERS.values(), "keydiff, 64", "keydiff, 128", "full"]
        assert {case.beside(STOCK) for case in group} == {group[0]}
        assert {case.beside(ALIKE) for case in group} == {group[1]}
    assert groups_of(policies=["keydiff", "stock"]) == groups_of(policies=["keydiff"])


def test_groups_and_their_cases_take_turns_at_being_first():
    groups = groups_of()
    order = list(in_turn(groups, 3))
    for repeat in range(3):
        cases = [case for number, case in order if number == repeat]
        parts = [cases[i : i + 4] for i in range(0, len(cases), 4)]
        assert [set(part) for part in parts] == [set(groups[(i + repeat) % 4]) for i in range(4)]
        assert {part[0].name for part in parts} == {(*PEERS.values(), "keydiff, 64", "full")[repeat]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budgets": [0]}, "budget=0 is not possible"),
        ({"blocks": [16, -1]}, "block=-1 is not possible"),
        ({"lengths": [0]}, "length=0 is not possible"),
    ],
)
def test_impossible_numbers_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        groups_of(**given)
    with pytest.raises(ConfigError, match="repeats=0"):
        SpeedRun(groups_of(), 0)


@pytest.mark.parametrize(
    ("given", "error"),
    [({"policies": ["keydif"]}, PolicyError), ({"budgets": [20]}, BudgetError), ({"blocks": [5000]}, ConfigError)],
)
def test_what_cannot_run_is_refused_before_anything_is_measured(vocabulary, given, error):
    with pytest.raises(error):
        SpeedRun(groups_of(vocabulary.path, **given), 1).check()


def test_llama_cpp_past_the_trained_context_is_left_out(vocabulary):
    run = SpeedRun(groups_of(vocabulary.path, policies=["keydiff"], blocks=[16], lengths=[508, 509]), 2)
    run.check()
    assert [(case.policy, case.n_tokens) for case in run.left_out] == [(STOCK, 509), (ALIKE, 509)]
    assert all(reason.startswith("513 tokens are more than the 512") for reason in run.left_out.values())
    assert [(repeat, c.policy, c.n_tokens) for repeat, c in run.todo] == [
        *((0, "stock", 508), (0, "alike", 508), (0, "keydiff", 508), (0, "keydiff", 509)),
        *((1, "keydiff", 509), (1, "alike", 508), (1, "keydiff", 508), (1, "stock", 508)),
    ]


def test_what_does_not_fit_the_machine_is_left_out(vocabulary, monkeypatch):
    planned = []

    plan = Setting.plan

    def counted(setting, n_tokens, **options):
        if not setting.is_full:
            planned.append(setting.budget)
            if setting.budget == 128:
                refuse(128)
        return plan(setting, n_tokens, **options)

    monkeypatch.setattr(Setting, "plan", counted)
    run = SpeedRun(groups_of(vocabulary.path, policies=["keydiff"], budgets=[64, 128], blocks=[16]), 1)
    run.check()
    assert planned == [64, 128]  # whatever the length
    assert [(case.name, case.n_tokens, reason) for case, reason in run.left_out.items()] == [
        *(("keydiff, 128", 150, "too large"), ("keydiff, 128", 300, "too large")),
    ]


@pytest.fixture
def measured(monkeypatch):
    """Figures without a measurement, which grow with every call, 10 times as large for `stock`; returns the calls."""
    calls = []

    def measure(case, text):
        calls.append((case, text))
        if case.policy == "full" and len(calls) > 3:
            raise WorkerError("killed")
        return {"prompt_tokens": 7} | dict.fromkeys(FIGURES, len(calls) * (10 if case.policy == STOCK else 1))

    monkeypatch.setattr(speed, "measure", measure)
    return calls


def test_summaries_are_medians_ranges_and_ratios_within_a_repeat(measured):
    run = SpeedRun(groups_of(policies=["keydiff"], blocks=[16], lengths=[150]), 3)
    assert list(run.steps({150: "text"})) == [case for _, case in run.todo] == [case for case, _ in measured]
    report = json.loads(json.dumps(run.as_dict()))
    stock, alike, keydiff = report["cases"]
    assert [(sample["repeat"], sample["policy"], sample["ttft_s"]) for sample in report["samples"]] == [
        *((0, "stock", 10), (0, "alike", 2), (0, "keydiff", 3)),
        *((1, "alike", 4), (1, "keydiff", 5), (1, "stock", 60)),
        *((2, "keydiff", 7), (2, "stock", 80), (2, "alike", 9)),
    ]
    for peer in (stock, alike):
        assert (peer["name"], peer["budget"]) == (PEERS[peer["policy"]], None)
        assert peer["of_stock"] is peer["of_alike"] is None
    assert (keydiff["name"], keydiff["n_repeats"], keydiff["prompt_tokens"]) == ("keydiff, 64", 3, 7)
    for name in FIGURES:
        assert stock[name] == {"median": 60, "min": 10, "max": 80}
        assert keydiff[name] == {"median": 5, "min": 3, "max": 7}
    assert keydiff["of_stock"].keys() == keydiff["of_alike"].keys() == {*COMPARED}
    for ratio in keydiff["of_stock"].values():
        assert ratio == {"median": 7 / 80, "min": 5 / 60, "max": 3 / 10}
    for ratio in keydiff["of_alike"].values():
        assert ratio == {"median": 5 / 4, "min": 7 / 9, "max": 3 / 2}


def test_a_case_that_fails_is_left_out_from_then_on(measured):
    run = SpeedRun(groups_of(blocks=[16], lengths=[150]), 3)
    assert len(list(run.steps({150: "text"}))) == 12
    assert sum(case.policy == "full" for case, _ in measured) == 1
    report = run.as_dict()
    assert [(case["policy"], case["reason"]) for case in report["left_out"]] == [("full", "killed")]
    assert [case["name"] for case in report["cases"]] == [*PEERS.values(), "keydiff, 64"]


def test_what_was_measured_before_a_break_is_summed_up(measured):
    run = SpeedRun(groups_of(), 3)
    steps = run.steps(dict.fromkeys((150, 300), "text"))
    first, second = next(steps), next(steps)
    assert [first, second] == [case for case, _ in measured]
    assert [case["name"] for case in run.as_dict()["cases"]] == [first.name, second.name]


# ---- texts ----


@pytest.mark.parametrize("book", [None, " ".join(f"word{i}" for i in range(500))])
def test_texts_begin_alike_and_have_their_length(vocabulary, book):
    texts = prompts(vocabulary, book, [50, 400])
    assert texts[400].startswith(texts[50])
    for n, text in texts.items():
        assert abs(len(vocabulary.tokenize(text)) - n) <= 1
    with pytest.raises(InputError, match="the text has 2 tokens, but 50 are needed"):
        prompts(vocabulary, "a b", [50, 400])


# ---- pictures ----


def test_pictures_are_drawn(measured, tmp_path):
    pytest.importorskip("matplotlib")
    from edgekv.evals.speed_pictures import draw_all

    run = SpeedRun(groups_of(), 2)
    list(run.steps(dict.fromkeys((150, 300), "text")))
    paths = draw_all(run.as_dict()["cases"], tmp_path / "new")
    assert [path.name for path in paths] == ["ttft.png", "prefill.png", "decode.png", "memory.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
