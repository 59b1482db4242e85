"""Attention policies on heads small enough to compute by hand.

Keys are logarithms and the scale is 1, so that a softmax is a share: logits ln 1, ln 3 give 1/4, 3/4.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from policy_arrays import BACKENDS

from edgekv.scoring import score, select

D = 32
NEAR = {"rtol": 2e-6, "atol": 1e-7}


def keys_of(weights):
    """One head whose cells a query of ones in the first element attends to as `weights` say: (1, n, D)."""
    keys = np.zeros((1, len(weights), D))
    keys[0, :, 0] = np.log(weights)
    return keys


def queries_of(*firsts):
    """(G, W, D) from the first elements of each head's rows; a head of zeros attends to all it sees alike."""
    queries = np.zeros((len(firsts), len(firsts[0]), D))
    queries[:, :, 0] = firsts
    return queries


# six cells, two rows at the positions of the last two: the first row sees five cells, the second all
HEAD = {
    "keys": keys_of([4, 2, 1, 1, 2, 6]),
    "positions": np.array([[0, 3, 5, 6, 8, 9]]),
    "queries": queries_of([1, 1]),
    "query_positions": [8, 9],
    "scale": 1.0,
}
ROWS = np.array([[4, 2, 1, 1, 2, 0], [4, 2, 1, 1, 2, 6]]) / [[10], [16]]
ALIKE = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]) / [[5], [6]]  # weights by a query of zeros


@pytest.mark.parametrize("backend", BACKENDS)
class TestWeights:
    def test_tova_is_the_newest_row(self, backend):
        (scores,) = score("tova", **HEAD, backend=backend)
        np.testing.assert_allclose(scores, ROWS[1], **NEAR)

    def test_h2o_is_the_sum_of_rows_and_of_what_was_gathered(self, backend):
        (scores,) = score("h2o", **HEAD, backend=backend)
        np.testing.assert_allclose(scores, ROWS.sum(axis=0), **NEAR)
        gathered = np.array([[3.0, 0, 0.5, 0, 1, 0]])
        (scores,) = score("h2o", **HEAD, accumulated=gathered, backend=backend)
        np.testing.assert_allclose(scores, gathered[0] + ROWS.sum(axis=0), **NEAR)

    def test_snapkv_is_the_mean_of_rows_whatever_was_gathered(self, backend):
        gathered = np.array([[0.5, 0.1, 0, 0.2, 0.9, 0]])
        (scores,) = score("snapkv(window=2, kernel=1)", **HEAD, accumulated=gathered, backend=backend)
        np.testing.assert_allclose(scores, ROWS.mean(axis=0), **NEAR)

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            ("tova", (ROWS + ALIKE)[1] / 2),
            ("h2o", (ROWS + ALIKE).sum(axis=0) / 2),
            ("snapkv(window=2, kernel=1)", (ROWS + ALIKE).mean(axis=0) / 2),
        ],
    )
    def test_query_heads_are_averaged(self, spec, expected, backend):
        (scores,) = score(spec, **HEAD | {"queries": queries_of([1, 1], [0, 0])}, backend=backend)
        np.testing.assert_allclose(scores, expected, **NEAR)

    def test_query_heads_belong_to_their_kv_head(self, backend):
        """Four query heads over two KV heads: the first two read the first."""
        two = {"keys": np.repeat(HEAD["keys"], 2, axis=0), "positions": np.repeat(HEAD["positions"], 2, axis=0)}
        two |= {"queries": queries_of([1, 1], [1, 1], [0, 0], [0, 0])}
        first, second = score("tova", **HEAD | two, backend=backend)
        np.testing.assert_allclose(first, ROWS[1], **NEAR)
        np.testing.assert_allclose(second, ALIKE[1], **NEAR)

    def test_softcap_bounds_the_logits(self, backend):
        """c tanh(x / c): logits of 0 and far more than c weigh as 0 and c."""
        keys = keys_of([1, 1, 1, 1, 1, 1])
        keys[0, 0, 0] = 1e4
        (scores,) = score("tova", **HEAD | {"keys": keys, "softcap": math.log(5)}, backend=backend)
        np.testing.assert_allclose(scores, np.array([5, 1, 1, 1, 1, 1]) / 10, **NEAR)

    def test_large_logits_do_not_overflow(self, backend):
        (scores,) = score("tova", **HEAD | {"queries": queries_of([1e4, 1e4])}, backend=backend)
        np.testing.assert_allclose(scores, [0, 0, 0, 0, 0, 1], **NEAR)


@pytest.mark.parametrize("backend", BACKENDS)
class TestSnapKV:
    window = ROWS.mean(axis=0)

    def test_cells_before_the_window_are_pooled_among_themselves(self, backend):
        a = self.window
        before = [(a[0] + a[1]) / 2, a[:3].mean(), a[1:4].mean(), (a[2] + a[3]) / 2]
        (scores,) = score("snapkv(window=2, kernel=3)", **HEAD, backend=backend)
        np.testing.assert_allclose(scores, [*before, a[4], a[5]], **NEAR)

    def test_maximum(self, backend):
        a = self.window
        (scores,) = score("snapkv(window=2, kernel=3, pool=max)", **HEAD, backend=backend)
        np.testing.assert_allclose(scores, [a[0], a[0], a[1], a[2], a[4], a[5]], **NEAR)

    def test_rows_are_pooled_one_by_one(self, backend):
        """The maximum of each row first: of cells 2 and 3 the first row's largest neighbours are cells 1 and 4."""
        queries = queries_of([1, 1], [-1, -1])
        rows = [ROWS[0], ROWS[1], *(np.array([1 / 4, 1 / 2, 1, 1, 1 / 2, last]) for last in (0, 1 / 6))]
        rows = np.array([row / row.sum() for row in rows])
        before = np.array([rows[:, :2].max(1), rows[:, :3].max(1), rows[:, 1:4].max(1), rows[:, 2:4].max(1)])
        expected = [*before.mean(axis=1), *rows.mean(axis=0)[4:]]
        arguments = HEAD | {"queries": queries, "backend": backend}
        (scores,) = score("snapkv(window=2, kernel=3, pool=max, pool_rows=on)", **arguments)
        np.testing.assert_allclose(scores, expected, **NEAR)
        (means,) = score("snapkv(window=2, kernel=3, pool=max)", **arguments)
        assert (scores[1:3] > means[1:3] + 0.01).all()

    def test_a_mean_of_pooled_rows_is_a_pooled_mean(self, backend):
        """With the average the order makes no difference."""
        found = [score(f"snapkv(window=2, kernel=3{more})", **HEAD, backend=backend) for more in ("", ", pool_rows=on")]
        np.testing.assert_allclose(*found, **NEAR)

    def test_the_largest_weight_of_all_rows_and_heads(self, backend):
        queries = queries_of([1, 1], [0, 0])
        spec = "snapkv(window=2, kernel=1, aggregate=max)"
        (scores,) = score(spec, **HEAD | {"queries": queries}, backend=backend)
        np.testing.assert_allclose(scores, np.concatenate([ROWS, ALIKE]).max(axis=0), **NEAR)
        (scores,) = score("snapkv(window=2, kernel=3, aggregate=max)", **HEAD | {"queries": queries}, backend=backend)
        a = np.concatenate([ROWS, ALIKE]).max(axis=0)  # pooled once the maximum is taken
        before = [(a[0] + a[1]) / 2, a[:3].mean(), a[1:4].mean(), (a[2] + a[3]) / 2]
        np.testing.assert_allclose(scores, [*before, a[4], a[5]], **NEAR)

    def test_a_narrower_window_reads_fewer_rows(self, backend):
        """window=1: one row, one cell protected; the last but one is pooled with the rest."""
        a = ROWS[1]
        (scores,) = score("snapkv(window=1, kernel=3)", **HEAD, backend=backend)
        pooled = [(a[0] + a[1]) / 2, a[:3].mean(), a[1:4].mean(), a[2:5].mean(), (a[3] + a[4]) / 2]
        np.testing.assert_allclose(scores, [*pooled, a[5]], **NEAR)

    def test_a_wider_kernel_than_the_head(self, backend):
        (scores,) = score("snapkv(window=2, kernel=15)", **HEAD, backend=backend)
        np.testing.assert_allclose(scores, [self.window[:4].mean()] * 4 + [*self.window[4:]], **NEAR)

    def test_rows_after_all_cells_pool_all_cells(self, backend):
        """A probe has no cells of its own in the cache."""
        (scores,) = score("snapkv(window=2, kernel=3)", **HEAD | {"query_positions": [10, 11]}, backend=backend)
        a = ROWS[1]
        pooled = [(a[0] + a[1]) / 2, *((a[i - 1] + a[i] + a[i + 1]) / 3 for i in range(1, 5)), (a[4] + a[5]) / 2]
        np.testing.assert_allclose(scores, pooled, **NEAR)

    def test_neighbours_are_neighbours_in_position(self, backend):
        order = [3, 5, 0, 4, 2, 1]
        moved = HEAD | {"keys": HEAD["keys"][:, order], "positions": HEAD["positions"][:, order]}
        (plain,), (other,) = (score("snapkv(window=2, kernel=3)", **a, backend=backend) for a in (HEAD, moved))
        np.testing.assert_allclose(other, plain[order], **NEAR)

    def test_the_window_stays(self, backend):
        arguments = HEAD | {"keys": keys_of([9, 8, 7, 6, 1, 1]), "budget": 3}
        (kept,) = select("snapkv(window=2, kernel=1)", **arguments, backend=backend)
        np.testing.assert_array_equal(kept, [0, 4, 5])


@pytest.mark.parametrize("backend", BACKENDS)
class TestPooling:
    """Of l2norm, whose scores are the norms given here, negative."""

    norms = np.array([5.0, 1, 3, 2, 9])

    def scores(self, spec, backend, order=(0, 1, 2, 3, 4)):
        keys = np.zeros((1, 5, D))
        keys[0, :, 7] = self.norms
        arguments = {"keys": keys[:, list(order)], "positions": np.array([[10, 20, 21, 22, 90]])[:, list(order)]}
        (scores,) = score(spec, **arguments, backend=backend)
        return -scores

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ("", [5, 1, 3, 2, 9]),
            ("(kernel=3)", [3, 3, 2, 14 / 3, 5.5]),
            ("(kernel=3, pool=max)", [1, 1, 1, 2, 2]),
            ("(kernel=5)", [3, 11 / 4, 4, 15 / 4, 14 / 3]),
            ("(kernel=5, pool=max)", [1, 1, 1, 1, 2]),
            ("(kernel=9)", [4, 4, 4, 4, 4]),
        ],
    )
    def test_neighbours(self, options, expected, backend):
        np.testing.assert_allclose(self.scores(f"l2norm{options}", backend), expected, rtol=1e-6)
        order = (4, 0, 2, 1, 3)
        moved = self.scores(f"l2norm{options}", backend, order)
        np.testing.assert_allclose(moved, np.array(expected)[list(order)], rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
class TestAhaKV:
    """Four cells, a budget of 2, and a text so long that lambda is 1 or a half."""

    # nu = 1, 4, 0, 1: pooled over three 5/2, 5/3, 5/3, 1/2
    values = np.array([[[1.0, 0], [0, 2], [0, 0], [0.6, -0.8]]])
    prior = np.array([1, 2 / 3, 2 / 3, 1 / 5])
    weights = np.array([1.0, 2, 3, 4])

    def scores(self, options, backend, **others):
        arguments = {
            "keys": keys_of(self.weights),
            "positions": np.arange(4)[None],
            "values": self.values,
            "queries": queries_of([1, 1]),
            "query_positions": [4, 5],
            "budget": 1000,
            "tokens_seen": 1000,
            "scale": 1.0,
        } | others
        (scores,) = score(f"ahakv(kernel=3{options})", **arguments, backend=backend)
        return scores

    def gained(self, power):
        """Weights sharpened by lambda, as shares."""
        return self.weights**power / (self.weights**power).sum()

    def test_prior_times_attention(self, backend):
        """tokens_seen = budget: ln 1 = 0, and the model's own scale holds."""
        np.testing.assert_allclose(self.scores("", backend), self.prior * 2 * self.gained(1), **NEAR)

    def test_step_gain_of_each_row(self, backend):
        """lambda = sqrt(2 ln(i/k) / d): with D = 32 and k = 2, i = 2 e^16 gives 1 and i - 1 as good as 1."""
        seen = round(2 * math.exp(16))
        found = self.scores(", floor=off", backend, budget=2, tokens_seen=seen, scale=0.5)
        np.testing.assert_allclose(found, self.prior * 2 * self.gained(1), rtol=1e-5)
        gains = [math.sqrt(2 * math.log(i / 2) / D) for i in (99, 100)]
        found = self.scores("", backend, budget=2, tokens_seen=100, scale=0.1)
        np.testing.assert_allclose(found, self.prior * sum(map(self.gained, gains)), **NEAR)

    def test_its_newest_rows_stay_where_it_protects_them(self, backend):
        """Of cells that score higher the earlier they are, two are kept: the two newest only if they are protected."""
        head = {"keys": keys_of([9, 7, 5, 1, 1]), "positions": np.arange(5)[None], "values": np.ones((1, 5, 2))}
        head |= {"queries": queries_of([1, 1]), "query_positions": [3, 4], "scale": 1.0, "budget": 3}
        (kept,) = select("ahakv(r=2)", **head, backend=backend)
        np.testing.assert_array_equal(kept, [0, 1, 2])
        (kept,) = select("ahakv(r=2, protect_recent=on)", **head, backend=backend)
        np.testing.assert_array_equal(kept, [0, 3, 4])

    def test_gain_is_never_below_the_models_scale_unless_asked(self, backend):
        seen = round(2 * math.exp(1))
        gains = [math.sqrt(2 * math.log(i / 2) / D) for i in (seen - 1, seen)]
        assert max(gains) < 0.5
        arguments = {"budget": 2, "tokens_seen": seen, "scale": 0.5}
        np.testing.assert_allclose(self.scores("", backend, **arguments), self.prior * 2 * self.gained(0.5), **NEAR)
        bare = self.scores(", floor=off", backend, **arguments)
        np.testing.assert_allclose(bare, self.prior * sum(map(self.gained, gains)), **NEAR)

    def test_before_the_budget_is_full_the_bare_gain_is_0(self, backend):
        found = self.scores(", floor=off", backend, tokens_seen=500)
        np.testing.assert_allclose(found, self.prior * 2 * self.gained(0), **NEAR)

    def test_tokens_seen_are_by_default_those_before_the_last_row_and_itself(self, backend):
        given = self.scores("", backend, budget=2, tokens_seen=6, scale=0.01)
        default = self.scores("", backend, budget=2, tokens_seen=None, scale=0.01)
        np.testing.assert_array_equal(default, given)
        gains = [math.sqrt(2 * math.log(i / 2) / D) for i in (5, 6)]
        np.testing.assert_allclose(given, self.prior * sum(map(self.gained, gains)), **NEAR)

    def test_only_the_newest_rows_count(self, backend):
        """r=1; and what accumulated goes under the prior too."""
        queries = queries_of([2, 1])
        gathered = np.array([[1.0, 2, 0, 4]])
        found = self.scores(", r=1", backend, queries=queries, accumulated=gathered)
        np.testing.assert_allclose(found, self.prior * (gathered[0] + self.gained(1)), **NEAR)

    def test_without_recent_accumulation_all_rows_count(self, backend):
        found = self.scores(", r=1, recent_accumulation=off", backend, queries=queries_of([2, 1]))
        np.testing.assert_allclose(found, self.prior * (self.gained(2) + self.gained(1)), **NEAR)

    def test_without_step_gain_the_models_scale_holds(self, backend):
        found = self.scores(", step_gain=off", backend, budget=None, scale=2.0)
        np.testing.assert_allclose(found, self.prior * 2 * self.gained(2), **NEAR)

    def test_without_value_prior_values_are_not_read(self, backend):
        found = self.scores(", value_prior=off", backend, values=None)
        np.testing.assert_allclose(found, 2 * self.gained(1), **NEAR)

    def test_values_of_zero_leave_the_attention(self, backend):
        found = self.scores("", backend, values=np.zeros((1, 4, 2)))
        np.testing.assert_allclose(found, 2 * self.gained(1), **NEAR)

    def test_all_ablations_together_are_h2o(self, backend):
        off = ", recent_accumulation=off, step_gain=off, value_prior=off"
        gathered = np.array([[1.0, 2, 0, 4]])
        found = self.scores(off, backend, accumulated=gathered)
        np.testing.assert_allclose(found, gathered[0] + 2 * self.gained(1), **NEAR)
