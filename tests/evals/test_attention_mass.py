"""Attention of questions and answers that eviction leaves, against sums over kept positions and the oracle's."""

from __future__ import annotations

import numpy as np
import pytest

import edgekv
from bench.papers.asking import looking
from bench.papers.attention_mass import attention_masses, surviving_mass
from bench.papers.oracle import OracleSetting
from bench.papers.texts import of_text
from edgekv.evals.document import Question
from edgekv.evals.question_protocol import ask_all
from edgekv.evals.setting import OpenRuntime, Setting

QUESTIONS = (Question("What is blue?", ("sea",), max_tokens=4), Question("Who came?", ("nobody",), max_tokens=4))


@pytest.fixture
def setting(tiny_model):
    """Makes settings over a tiny model."""
    model = str(tiny_model(n_layer=2, n_ctx_train=2048, n_embd=128))
    return lambda **fields: Setting(model=model, **{"budget": 64, "block": 32, "recent": 8} | fields)


def by_question(masses):
    return dict(zip(QUESTIONS, masses, strict=True))


def measured(setting, text):
    with setting.open(600, threads=1) as runtime:
        masses = attention_masses(runtime, setting, text, QUESTIONS)
        return ask_all(runtime, setting, text, QUESTIONS, look=looking(runtime, setting, by_question(masses))), masses


def test_all_of_it_is_left_in_a_full_cache(setting, text):
    answered, masses = measured(setting(policy="full"), text)
    assert [each.cells["mass"] for each in answered] == pytest.approx([1.0, 1.0])
    for question in masses:
        assert [len(heads) for heads in question] == [2, 2]
        assert all(mass.sum() == pytest.approx(1) and mass.min() >= 0 for heads in question for mass in heads)


def test_it_is_what_lies_in_the_positions_that_are_kept(setting, text):
    how = setting(policy="snapkv+ada")
    with how.open(600, threads=1) as runtime:
        masses = attention_masses(runtime, how, text, QUESTIONS)
        answered = ask_all(runtime, how, text, QUESTIONS, look=looking(runtime, how, by_question(masses)))
        with runtime.session() as session:
            session.read(files=[text], focus=False)
            kept = {(layer, g): session.kept_positions(layer, g) for layer in range(2) for g in range(2)}
    assert len({len(positions) for positions in kept.values()}) > 1  # heads share their cells
    for question, each in zip(masses, answered, strict=True):
        shares = [question[layer][g][positions].sum() for (layer, g), positions in kept.items()]
        assert each.cells["mass"] == pytest.approx(np.mean(shares), rel=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"policy": "keydiff"},
        {"policy": "snapkv+critical", "focus": "question"},
        {"policy": "random"},
        {"policy": "sink", "focus": "turn"},
        {"policy": "tova", "reposition": "always"},
        {"policy": "keydiff", "focus": "What?", "kv_type": "q8_0"},
    ],
)
def test_no_policy_of_as_many_cells_keeps_more_than_the_oracle(setting, text, fields):
    (found, _), (best, _) = measured(setting(**fields), text), measured(OracleSetting.of(setting()), text)
    for each, ideal in zip(found, best, strict=True):
        assert 0 < each.cells["mass"] < ideal.cells["mass"] < 1


def test_replies_are_the_same_with_it(setting, text):
    how = setting(focus="What?")
    with how.open(600, threads=1) as runtime:
        plain = ask_all(runtime, how, text, QUESTIONS)
    assert [each.reply for each in measured(how, text)[0]] == [each.reply for each in plain]


def test_a_text_beyond_the_trained_context_is_refused(tiny_model, text):
    how = Setting(model=str(tiny_model(n_ctx_train=256)), budget=64, block=32, recent=8)
    with how.open(600, threads=1) as runtime, pytest.raises(edgekv.InputError, match=r"looked at together, .* 256"):
        attention_masses(runtime, how, text, QUESTIONS)


def test_masses_are_not_computed_again_for_the_next_policy():
    made = []
    with OpenRuntime() as runtimes:
        for key in (1, 2, 1, 2, 3, 1):
            of_text(runtimes, key, lambda key=key: made.append(key), keep=2)
    assert made == [1, 2, 3, 1]


def test_positions_of_the_question_do_not_count():
    class Kept:
        def positions(self, layer, g):
            return np.array([0, 2, 9])

    assert surviving_mass([[np.array([0.5, 0.2, 0.3], np.float32)]], Kept()) == pytest.approx(0.8)
