"""The oracle keeps what the question and its answer attend to most: against float64 sums over the stored rows."""

from __future__ import annotations

import numpy as np
import pytest

import edgekv
from edgekv.evals import oracle
from edgekv.evals.captures import stored_rows
from edgekv.evals.document import Question
from edgekv.evals.question_protocol import ask_all
from edgekv.evals.setting import Setting
from edgekv.policies import Head
from edgekv.policies.attention import window_attention

TEXT = "The sea was blue, and nobody came. The old house stood empty that year. " * 6
QUESTION = Question("What is blue?", ("sea",), max_tokens=4)
BUDGET = 48


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def oracle_setting(model, **fields):
    return Setting(model=str(model), **{"policy": "oracle", "budget": BUDGET, "block": 32} | fields)


def test_each_head_keeps_the_cells_with_most_attention(tiny_model, text):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048))
    with setting.open(600, threads=1) as runtime, runtime.session() as session:
        session.read(files=[text], focus=False)
        cache = runtime.block_loop.cache
        n_tokens = cache.n_cells
        cache.probe(oracle.probe_tokens(runtime, QUESTION))
        attention = {}
        for layer in range(2):
            queries, rows, scale = cache.queries(layer, probed=True)
            for g in range(2):
                keys = stored_rows(cache, layer, g, values=False)
                own = queries.reshape(2, -1, *queries.shape[1:])[g]
                positions = cache.positions(layer, g)
                attention[layer, g] = window_attention(
                    Head(keys=keys, values=None, positions=positions, queries=own, query_positions=rows, scale=scale)
                )
        oracle.choose(runtime, QUESTION, BUDGET)
        kept = {where: cache.positions(*where) for where in attention}
    assert n_tokens > 2 * BUDGET
    rng = np.random.default_rng(0)
    for where, mass in attention.items():
        assert len(kept[where]) == BUDGET
        best = np.sort(mass)[-BUDGET:].sum()
        assert mass[kept[where]].sum() == pytest.approx(best, rel=1e-4)
        assert mass[rng.choice(n_tokens, BUDGET, replace=False)].sum() < best
    assert any((kept[0, 0] != positions).any() for positions in kept.values())  # each head its own


def test_the_probe_is_what_is_fed_next(tiny_model, text):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048))
    with setting.open(600, threads=1) as runtime, runtime.session(log=True) as session:
        session.read(files=[text], focus=False)
        n_read = session.n_past
        "".join(session.chat(QUESTION.text, max_tokens=1))
        with session.alone() as conversation:
            fed = b"".join(conversation.pieces(n_read, session.n_past, True))
        tokens = oracle.probe_tokens(runtime, QUESTION)
        assert b"".join(runtime.model.piece(token, special=True) for token in tokens) == fed + b"sea"


def test_each_question_has_an_oracle_of_its_own(tiny_model, text):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048))
    other = Question("Who came?", ("nobody",), max_tokens=4)
    with setting.open(600, threads=1) as runtime:
        alone = [ask_all(runtime, setting, text, [q], nll=True)[0] for q in (QUESTION, other)]
        assert ask_all(runtime, setting, text, [QUESTION, other], nll=True) == alone


def test_with_room_for_all_cells_it_is_the_full_cache(tiny_model, text):
    model = tiny_model(n_layer=2, n_ctx_train=2048)
    found = []
    for setting in (oracle_setting(model, budget=1000), oracle_setting(model, policy="full")):
        with setting.open(600, threads=1) as runtime:
            found.append(ask_all(runtime, setting, text, [QUESTION], nll=True)[0])
    assert found[0].reply == found[1].reply
    assert found[0].nll == pytest.approx(found[1].nll, rel=1e-5)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_it_chooses_among_quantised_cells(tiny_model, text, kv_type):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048, n_embd=128), kv_type=kv_type)
    with setting.open(600, threads=1) as runtime:
        (found,) = ask_all(runtime, setting, text, [QUESTION], nll=True)
        assert 0 < found.nll < 50


def test_a_text_beyond_the_trained_context_is_refused(tiny_model, text):
    setting = oracle_setting(tiny_model(n_ctx_train=256))
    with setting.open(600, threads=1) as runtime, pytest.raises(edgekv.InputError, match=r"looked at together, .* 256"):
        ask_all(runtime, setting, text, [QUESTION])


def test_of_a_long_question_the_end_is_fed(tiny_model, text):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048))
    long = Question("What is blue? " * 40, ("sea",), max_tokens=4)
    with setting.open(600, threads=1) as runtime:
        tokens = oracle.probe_tokens(runtime, long)
        assert len(tokens) == oracle.PROBE_TOKENS
        assert runtime.text_of(tokens).endswith("sea")
        ask_all(runtime, setting, text, [long])


def test_its_configuration_is_what_matters_to_it():
    first, other = (
        Setting(policy="oracle", focus=focus, n_sink=sinks, recent=sinks) for focus, sinks in (("off", 4), ("turn", 0))
    )
    assert first.as_dict() == other.as_dict() != Setting(policy="oracle", budget=256).as_dict()
