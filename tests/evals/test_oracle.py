"""The oracle keeps what the question and its answer attend to most: against float64 sums over the stored rows."""

from __future__ import annotations

import numpy as np
import pytest

import edgekv
from bench.papers import oracle
from bench.papers.asked import table
from bench.papers.asking import looking
from bench.papers.captures import stored_rows
from bench.papers.grid import PaperGrid
from edgekv.evals.case import Case
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
    return oracle.OracleSetting(model=str(model), **{"budget": BUDGET, "block": 32} | fields)


def asked(runtime, setting, text, questions, *, nll=True):
    return ask_all(runtime, setting, text, questions, nll=nll, look=looking(runtime, setting))


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
    with setting.open(600, threads=1) as runtime, runtime.session(history=True) as session:
        session.read(files=[text], focus=False)
        n_read = session.n_past
        "".join(session.chat(QUESTION.text, max_tokens=1))
        with session.alone():
            fed = b"".join(session._call("pieces", n_read, session.n_past, True))
        tokens = oracle.probe_tokens(runtime, QUESTION)
        assert b"".join(runtime.model.piece(token, special=True) for token in tokens) == fed + b"sea"


def test_each_question_has_an_oracle_of_its_own(tiny_model, text):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048))
    other = Question("Who came?", ("nobody",), max_tokens=4)
    with setting.open(600, threads=1) as runtime:
        alone = [asked(runtime, setting, text, [q])[0] for q in (QUESTION, other)]
        assert asked(runtime, setting, text, [QUESTION, other]) == alone


def test_replies_are_the_same_with_likelihoods(tiny_model, text):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048))
    with setting.open(600, threads=1) as runtime:
        (plain,), (measured,) = (asked(runtime, setting, text, [QUESTION], nll=nll) for nll in (False, True))
    assert plain.reply == measured.reply
    assert plain.nll is None
    assert measured.nll > 0


def test_with_room_for_all_cells_it_is_the_full_cache(tiny_model, text):
    model = tiny_model(n_layer=2, n_ctx_train=2048)
    found = []
    for setting in (oracle_setting(model, budget=1000), oracle_setting(model).full_cache):
        with setting.open(600, threads=1) as runtime:
            found.append(asked(runtime, setting, text, [QUESTION])[0])
    assert found[0].reply == found[1].reply
    assert found[0].nll == pytest.approx(found[1].nll, rel=1e-5)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_it_chooses_among_quantised_cells(tiny_model, text, kv_type):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048, n_embd=128), kv_type=kv_type)
    with setting.open(600, threads=1) as runtime:
        (found,) = asked(runtime, setting, text, [QUESTION])
        assert 0 < found.nll < 50


def test_a_text_beyond_the_trained_context_is_refused(tiny_model, text):
    setting = oracle_setting(tiny_model(n_ctx_train=256))
    with setting.open(600, threads=1) as runtime, pytest.raises(edgekv.InputError, match=r"looked at together, .* 256"):
        asked(runtime, setting, text, [QUESTION], nll=False)


def test_of_a_long_question_the_end_is_fed(tiny_model, text):
    setting = oracle_setting(tiny_model(n_layer=2, n_ctx_train=2048))
    long = Question("What is blue? " * 40, ("sea",), max_tokens=4)
    with setting.open(600, threads=1) as runtime:
        tokens = oracle.probe_tokens(runtime, long)
        assert len(tokens) == oracle.PROBE_TOKENS
        assert runtime.text_of(tokens).endswith("sea")
        asked(runtime, setting, text, [long], nll=False)


def test_its_configuration_is_what_matters_to_it():
    first, other = (
        oracle.OracleSetting(focus=focus, n_sink=sinks, recent=sinks) for focus, sinks in (("off", 4), ("turn", 0))
    )
    assert first.as_dict() == other.as_dict() != oracle.OracleSetting(budget=256).as_dict()
    assert first.canonical == other.canonical == oracle.OracleSetting.of(Setting(archive="1GiB")).canonical


KEYS = {0: (0.0, 1.5), 1: (0.0, 1.1), 2: (0.0, 2.9), 3: (1.0, 0.2)}  # by seed: score and nll
GENERAL = {0: (0.0, 1.0), 1: (1.0, 0.9), 2: (0.0, 1.9)}
IDEAL = {0: (1.0, 0.4), 1: (1.0, 0.8), 2: (1.0, 0.6), 3: (1.0, 0.1)}
FULL = {0: (1.0, 0.5), 1: (1.0, 0.7), 2: (0.0, 0.9), 3: (1.0, 0.1)}


def found(setting, results):
    """Return cases of a needle with their results."""
    cases = [Case(PaperGrid.tasks["needle"], setting, 1000, seed, None, {"depth": None}) for seed in results]
    return [(case, {"score": score, "nll": nll}) for case, (score, nll) in zip(cases, results.values(), strict=True)]


def test_the_distance_to_the_oracle_is_that_of_the_same_texts_and_cells():
    few = Setting(budget=256)
    measured = [
        *found(Setting(policy="full", budget=512), FULL),
        *found(few, KEYS),
        *found(Setting(budget=256, focus="What?"), GENERAL),
        *found(oracle.OracleSetting(budget=256), IDEAL),
    ]
    made = table(measured)
    full, keys, general, ideal = made.data
    assert not any(name in line for name in ("below_oracle", "nll_above_oracle") for line in (full, ideal))
    assert ideal["nll_above_full"] == pytest.approx(-0.3 / 4)
    assert keys["below_oracle"] == pytest.approx(3 / 4)
    assert general["below_oracle"] == pytest.approx(2 / 3)
    assert keys["nll_above_oracle"] == pytest.approx((1.1 + 0.3 + 2.3 + 0.1) / 4)
    row = dict(zip(made.headers, made.rows[1], strict=True))
    assert (row["below oracle"], row["above oracle"]) == ("75%", "+0.95")
    assert "attention left" not in made.headers
    for other in (oracle.OracleSetting(budget=512), oracle.OracleSetting(budget=256, block=64)):
        assert not any("below_oracle" in line for line in table([*found(few, KEYS), *found(other, IDEAL)]).data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "perplexity", "oracle": True}, "an oracle is possible with needle, ruler, qa"),
        ({"task": "needle", "oracle": True, "memory": "2GiB"}, "oracle=True with memory=2GiB; it takes the memory of"),
        (
            {"task": "needle", "metrics": ("attention-mass",), "memory": "2GiB"},
            "metric=attention-mass with memory=2GiB; it takes the memory of a full cache",
        ),
        (
            {"task": "needle", "metrics": ("warmth",)},
            "metric='warmth' is unknown; possible: answer-nll, attention-mass",
        ),
        ({"task": "perturbation", "metrics": ("answer-nll",)}, "metric=answer-nll with the task perturbation"),
    ],
)
def test_what_does_not_go_together_is_refused(fields, message):
    with pytest.raises(edgekv.ConfigError, match=message):
        PaperGrid(**fields)


def test_an_oracle_reads_once_at_each_budget():
    grid = PaperGrid(task="needle", policies=("full", "keydiff"), focus=("off", "turn"), budgets=(64, 96), oracle=True)
    ideal = [setting for setting in grid.settings() if isinstance(setting, oracle.OracleSetting)]
    assert [setting.budget for setting in ideal] == [64, 96]
    assert grid.settings()[-2:] == ideal
