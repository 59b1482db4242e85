"""Perplexities against a float64 transformer that evicts the same tokens, and what is made of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from recorded import recorded_runtime
from reference_transformer import ReferenceModel

from edgekv.errors import ConfigError, InputError
from edgekv.evals.grid import Grid
from edgekv.evals.perplexity_gap import SEGMENT, gap, perplexity, pooled
from edgekv.evals.setting import FULL, OpenRuntime, Setting
from edgekv.evals.tasks.perplexity import table
from edgekv.evals.tokens import prompt_tokens

BUDGET, BLOCK = 64, 32
TOKENS = np.random.default_rng(1).integers(3, 250, 200).tolist()


def segments(logits):
    """-ln p of every token but the first, summed by segment: logits (n_tokens, n_vocab) float64."""
    shifted = logits[:-1] - logits[:-1].max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(TOKENS) - 1), TOKENS[1:]]
    return np.add.reduceat(losses, np.arange(0, len(losses), SEGMENT))


@pytest.mark.parametrize("spec", ["random(seed=3)", "h2o"])
def test_each_token_is_predicted_from_what_was_kept(tiny_model, spec):
    path = tiny_model(n_layer=2, n_ctx_train=1024)
    options = {"policy": spec, "budget": BUDGET, "block": BLOCK, "recent": 8, "focus": False, "threads": 1}
    with recorded_runtime(path, n_layer=2, n_head_kv=2, **options) as run:
        found = perplexity(run.runtime, TOKENS)
    assert found["n_tokens"] == len(TOKENS) - 1
    assert found["evicted_from"] == (BUDGET + BLOCK) // SEGMENT
    assert found["n_evictions"] == math.ceil((len(TOKENS) - 1 - BUDGET - BLOCK) / BLOCK)

    model = ReferenceModel.from_gguf(path)
    expected = segments(model.logits(TOKENS, visible=run.visible(len(TOKENS))))
    np.testing.assert_allclose(found["nll"], expected, rtol=2e-3)
    assert found["ppl"] == pytest.approx(math.exp(expected.sum() / found["n_tokens"]), rel=2e-3)
    after = expected[found["evicted_from"] :].sum() / (found["n_tokens"] - BUDGET - BLOCK)
    assert found["ppl_evicted"] == pytest.approx(math.exp(after), rel=2e-3)

    full = segments(model.logits(TOKENS))
    difference = np.abs(full - found["nll"])
    assert difference[: found["evicted_from"]].max() < 2e-3 * full.min()
    assert difference[found["evicted_from"] :].max() > 2e-2 * full.max()  # otherwise the check above says nothing


def test_a_budget_that_holds_everything_is_the_full_cache(tiny_model):
    path = str(tiny_model(n_layer=2, n_ctx_train=1024))
    with OpenRuntime(threads=1) as runtimes:
        found, full = (
            perplexity(runtimes.get(Setting(model=path, policy=policy, budget=256, block=BLOCK), len(TOKENS)), TOKENS)
            for policy in ("keydiff", FULL)
        )
    assert found["n_evictions"] == full["n_evictions"] == 0
    assert found["evicted_from"] is found["ppl_evicted"] is None
    assert gap([found], [full])["gap"] == 0.0
    assert gap([found], [full])["gap_evicted"] is None


def result(nll, n_tokens, evicted_from=None):
    return {"nll": nll, "n_tokens": n_tokens, "evicted_from": evicted_from}


def test_texts_count_by_their_tokens():
    """Two segments and a half, and one: 40 + 20 tokens that are each one of two, and 32 that are each one of four."""
    first = result([32 * math.log(2), 28 * math.log(2)], 60)
    second = result([32 * math.log(4)], 32)
    assert pooled([first]) == pytest.approx(2)
    assert pooled([first, second]) == pytest.approx(math.exp((60 * math.log(2) + 32 * math.log(4)) / 92))
    assert pooled([first, second], [1, 0]) == pytest.approx(math.exp((28 * math.log(2) + 32 * math.log(4)) / 60))


def test_the_gap_is_taken_where_cells_were_evicted():
    found = [result([32 * math.log(2), 32 * math.log(5)], 64, 1), result([32 * math.log(9)], 32)]
    full = [result([32 * math.log(2), 32 * math.log(3)], 64), result([32 * math.log(9)], 32)]
    of_both = gap(found, full)
    assert of_both["ppl_evicted"] == pytest.approx(5)
    assert of_both["full_evicted"] == pytest.approx(3)
    assert of_both["gap_evicted"] == pytest.approx(2)
    assert of_both["ppl"] == pytest.approx((2 * 5 * 9) ** (1 / 3))
    assert of_both["gap"] == pytest.approx(90 ** (1 / 3) - 54 ** (1 / 3))


@pytest.mark.parametrize("full", [[], [result([1.0], 31)]])
def test_results_of_other_texts_have_no_gap(full):
    with pytest.raises(ConfigError, match=r"texts of \[32\]"):
        gap([result([1.0], 32)], full)


def test_a_text_must_have_two_tokens_and_fit(tiny_model):
    path = str(tiny_model(n_layer=2, n_ctx_train=128))
    with OpenRuntime(threads=1) as runtimes:
        runtime = runtimes.get(Setting(model=path, budget=BUDGET, block=BLOCK, reposition="never"), 0)
        with pytest.raises(ConfigError, match="a perplexity of 1 token cannot be had"):
            perplexity(runtime, TOKENS[:1])
        with pytest.raises(InputError, match="129 tokens are wanted, but the model was trained on 128"):
            perplexity(runtime, TOKENS[:129])
        assert perplexity(runtime, TOKENS[:128])["n_tokens"] == 127
        with pytest.raises(InputError, match="but 50 are needed"):
            prompt_tokens(runtime.model, "short", 50)
        assert len(prompt_tokens(runtime.model, "not so short", 3)) == 3


def test_each_setting_is_compared_with_the_full_cache_of_its_block_and_type():
    nll = {("full", "f16"): 2, ("full", "q4_0"): 3, ("keydiff", "f16"): 5, ("keydiff", "q4_0"): 7}
    grid = Grid(task="perplexity", policies=("full", "keydiff"), kv_types=("f16", "q4_0"), samples=1)
    measured = [
        (case, result([32 * math.log(nll[case.setting.policy, case.setting.kv_type])], 32)) for case in grid.cases()
    ]
    assert [row["gap"] for row in table(measured).data] == pytest.approx([0, 0, 5 - 2, 7 - 3])


def test_a_full_cache_of_two_grids_is_one_row():
    grids = [Grid(task="perplexity", policies=("full", "keydiff"), n_sink=n, seed=n, samples=1) for n in (0, 4)]
    measured = [(case, result([32.0], 32)) for grid in grids for case in grid.cases()]
    assert [(row["policy"], row["n"]) for row in table(measured).data] == [("full", 2), ("keydiff", 1), ("keydiff", 1)]
