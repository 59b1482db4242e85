"""CriticalKV's bounds: the attention output never moves further than they say, and the second stage lowers one."""

from __future__ import annotations

import numpy as np
import pytest
from policy_arrays import BACKENDS

from edgekv.policies.critical import wo_norms
from edgekv.scoring import score, select

N, BUDGET, N_EMBD = 60, 20, 48


def random_head(seed):
    """One KV head under one query whose attention is as uneven as a model's: arguments of `select`."""
    rng = np.random.default_rng(seed)
    return {
        "keys": rng.standard_normal((1, N, 32)),
        "positions": rng.permutation(N)[None],
        "values": rng.standard_normal((1, N, 16)) * rng.lognormal(sigma=0.8, size=(1, N, 1)),
        "queries": 2.5 * rng.standard_normal((1, 1, 32)),
        "query_positions": [N],
        "w_o": rng.standard_normal((1, 16, N_EMBD)) * rng.lognormal(size=(1, 1, N_EMBD)),
    }


def attention(head):
    """A (n,), recomputed here."""
    logits = head["keys"][0] @ head["queries"][0, 0] / np.sqrt(32)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def perturbation(head, kept):
    """L (eq. 5): norm1 of what evicting the other cells does to the projected attention output."""
    weights = attention(head)
    left = np.where(np.isin(np.arange(N), kept), weights, 0)
    return np.abs((weights - left / left.sum()) @ head["values"][0] @ head["w_o"][0]).sum()


def theta(head, kept):
    """The bound of L (eq. 8): C - (2 - 1 / sum_kept A) * sum_kept A norm1(V W_O), C that sum over all cells."""
    weights = attention(head)
    moves = weights * wo_norms(head["values"][0], head["w_o"])
    return moves.sum() - (2 - 1 / weights[kept].sum()) * moves[kept].sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["tova", "tova+critical", "tova+critical(alpha=0)", "tova+caote+critical", "random"])
def test_the_output_never_moves_further_than_the_bound(spec, backend):
    for seed in range(200):
        head = random_head(seed)
        (kept,) = select(spec, **head, budget=BUDGET, backend=backend)
        assert perturbation(head, kept) <= theta(head, kept) * (1 + 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_stage_lowers_the_bound_that_holds_after_the_first(backend):
    """Theorem 3.5: theta_hat, above theta, is theta with sigma, the first stage's attention, in its denominator.

    No choice of the second stage makes it lower, but for the 1e-4 that is added to the attention.
    """
    ratios = []
    for seed in range(200):
        head = random_head(seed)
        one, two = (select(spec, **head, budget=BUDGET, backend=backend)[0] for spec in ("tova", "tova+critical"))
        norms = wo_norms(head["values"][0], head["w_o"])
        moves = attention(head) * norms
        sigma = np.sort(attention(head))[-BUDGET // 2 :].sum()
        assert sigma > 0.5  # Assumption 3.4
        bounds = [moves.sum() - (2 - 1 / sigma) * moves[kept].sum() for kept in (one, two)]
        assert theta(head, two) <= bounds[1]
        assert bounds[1] <= bounds[0] + (2 - 1 / sigma) * 1e-4 * norms[two].sum()
        ratios.append(bounds[1] / bounds[0])
    assert np.mean(ratios) < 0.96


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_stage_is_attention_times_norm(backend):
    """(A + 1e-4) * norm1(V W_O), the norm averaged over the query heads of the group."""
    head = random_head(1)
    rng = np.random.default_rng(0)
    w_o = rng.standard_normal((3, 16, N_EMBD))
    queries = rng.standard_normal((3, 1, 32))
    (weights,) = score("tova", **head | {"queries": queries, "w_o": None}, backend=backend)
    norms = np.mean([[np.abs(v @ w).sum() for v in head["values"][0]] for w in w_o], axis=0)
    (scores,) = score("tova+critical", **head | {"queries": queries, "w_o": w_o}, backend=backend)
    np.testing.assert_allclose(scores, (weights + 1e-4) * norms, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("options", "added"), [("epsilon=0", 0), ("epsilon=0.02", 0.02)])
def test_what_is_added_to_the_attention(options, added, backend):
    head = random_head(2)
    (scores,) = score(f"tova+critical({options})", **head, backend=backend)
    np.testing.assert_allclose(scores, (attention(head) + added) * wo_norms(head["values"][0], head["w_o"]), rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_protected_cells_are_no_part_of_the_budget_that_is_split(backend):
    """12 of 20 cells protected: of the other 8, 4 by attention alone."""
    head = random_head(5)
    positions = head["positions"][0]
    weights = np.where(positions < 12, np.inf, attention(head))
    best = np.argsort(weights)[-16:]
    norms = wo_norms(head["values"][0], head["w_o"])
    second = np.where(np.isin(np.arange(N), best), np.inf, (attention(head) + 1e-4) * norms)
    expected = np.argsort(second)[-20:]
    (kept,) = select("tova+critical", **head, budget=20, n_sink=12, backend=backend)
    assert set(kept) == set(expected)
    assert set(kept) != set(select("tova", **head, budget=20, n_sink=12, backend=backend)[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("base", ["tova", "keydiff", "tova+caote"])
def test_alpha_of_one_is_the_base_alone(base, backend):
    for seed in range(5):
        head = random_head(seed)
        plain, all_first = (
            select(spec, **head, budget=BUDGET, backend=backend)[0] for spec in (base, f"{base}+critical(alpha=1)")
        )
        np.testing.assert_array_equal(plain, all_first)
