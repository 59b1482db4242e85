"""Claims of the papers on the default model's own keys, values and queries; docs/results/papers.md has the figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cache_arrays import output_projections, read_rows

import edgekv
from edgekv.policies import Head, parse_policy
from edgekv.policies.attention import attention
from edgekv.policies.critical import wo_norms
from edgekv.policies.selection import Protection
from edgekv.scoring import score

BUDGET, BLOCK, N_TOKENS = 512, 128, 1536
# the same theorems are tested on random attention (tests/unit); this says that the papers speak of real attention
pytestmark = pytest.mark.nightly

PROTECTION = Protection(n_sink=4, recent=32)
LAYER_STEP = 3  # every third layer is looked at
ROUNDING = 1e-9


def opened(path, policy):
    """A runtime on the default model, and tokens of a text that every checkout has."""
    runtime = edgekv.Runtime(path, memory="4GiB", policy=policy, budget=BUDGET, block=BLOCK, threads=2, focus=False)
    text = (Path(__file__).parents[2] / "examples" / "oz.txt").read_text("utf-8")
    tokens = runtime.model.tokenize(text)[:N_TOKENS]
    assert len(tokens) == N_TOKENS
    return runtime, tokens


def all_positions(cache):
    """Return the unprotected positions of every head: a list over layers and heads."""
    kv_heads = np.ndindex(cache.shape.n_layer, cache.shape.n_head_kv_max)
    kept = (cache.positions(layer, g) for layer, g in kv_heads)
    return [cells[~PROTECTION.mask(cells)] for cells in kept]


class Reading:
    """A text read under h2o: some heads with all of a full cache, before the last compaction, and what was kept."""

    def __init__(self, path):
        self.policy = parse_policy("h2o")
        self.carried = {}
        runtime, tokens = opened(path, "h2o")
        with runtime:
            cache = runtime.block_loop.cache
            for p0 in range(0, N_TOKENS, BLOCK):
                cache.feed(tokens[p0 : p0 + BLOCK])
                heads = list(self.seen(cache))
                if p0 + BLOCK == N_TOKENS:
                    w_o = output_projections(
                        path, cache.shape.n_head_max, cache.shape.n_head_kv_max, cache.shape.head_dim_v
                    )
                    self.heads = [self.with_values(cache, head, w_o) for head in heads]
                cache.compact(self.policy, BUDGET, n_sink=PROTECTION.n_sink, recent=PROTECTION.recent)
            self.kept = all_positions(cache)

    def seen(self, cache):
        """Heads as they are now; sums up what h2o carries with their cells."""
        for layer in range(0, cache.shape.n_layer, LAYER_STEP):
            queries, rows, scale = cache.queries(layer)
            queries = queries.reshape(cache.shape.n_head_kv_max, -1, *queries.shape[1:])
            for g, group in enumerate(queries):
                carried, positions = self.carried.get((layer, g), {}), cache.positions(layer, g)
                head = Head(
                    keys=read_rows(cache, layer, g),
                    positions=positions,
                    queries=group,
                    query_positions=rows,
                    accumulated=np.array([carried.get(p, 0.0) for p in positions.tolist()]),
                    scale=scale,
                    budget=BUDGET,
                    layer=layer,
                    head=g,
                )
                sums = self.policy.accumulate(head)
                self.carried[layer, g] = dict(zip(positions.tolist(), sums.tolist(), strict=True))
                yield head

    def with_values(self, cache, head, w_o):
        """The head with its values, and the W_O that they meet, (G, d_v, n_embd)."""
        values = read_rows(cache, head.layer, head.head, values=True)
        projection = w_o[head.layer][head.head]
        return replace(head, values=values, wo_norm=wo_norms(values, projection)), projection


@pytest.fixture(scope="module")
def reading(default_model):
    return Reading(default_model)


def remaining(spec, head, budget=BUDGET):
    """(n,) bool: whether each cell stays."""
    stays = np.zeros(len(head.positions), dtype=bool)
    stays[parse_policy(spec).keep(replace(head, budget=budget), PROTECTION)] = True
    return stays


def change(head, w_o, stays):
    """norm1 of what evicting does to the projected output of every row, and the bound theta (eq. 8): (G, W) each."""
    weights, values = attention(head), head.values
    left = weights * stays
    share = left.sum(axis=2, keepdims=True)
    norm1 = np.abs((weights - left / share) @ values @ w_o).sum(axis=2)
    moves = weights * np.abs(values @ w_o).sum(axis=2)[:, None]
    theta = moves.sum(axis=2) - (2 - 1 / share[..., 0]) * (moves * stays).sum(axis=2)
    return norm1, theta + ROUNDING * moves.sum(axis=2)


SCORED_BY = {"h2o": BLOCK, "snapkv": 32, "tova": 1}  # rows of queries


@pytest.mark.parametrize("base", SCORED_BY)
def test_no_output_moves_further_than_criticalkvs_bound(reading, base):
    """Eq. 8, for the queries that scored, a mild and a severe eviction, with one stage of selection and with two."""
    for head, w_o in reading.heads:
        seen = head.newest_rows(SCORED_BY[base])
        for budget in (BUDGET, BUDGET // 4):
            for spec in (base, f"{base}+critical"):
                norm1, bound = change(seen, w_o, remaining(spec, seen, budget))
                assert (norm1 <= bound).all()
                assert norm1.max() > 0.01 * bound.max()  # otherwise the bound says nothing


def test_two_stages_move_the_output_less_in_most_heads(reading):
    """CriticalKV, section 4.6, for the queries that h2o scored by, and cells as many as edgekv evicts at once.

    h2o sums attention, so the 1e-4 that the second stage adds to every weight counts for nothing. Where weights are
    means, as in snapkv and tova, most evicted cells weigh less than that; there the claim fails on this model.
    """
    before, after = (
        np.concatenate([change(head, w_o, remaining(spec, head))[0].mean(axis=1) for head, w_o in reading.heads])
        for spec in ("h2o", "h2o+critical")
    )
    assert (after < before).mean() > 0.7  # 0.88 when it was written; the paper has 0.92
    assert np.exp(np.log(after / before).mean()) < 0.95  # 0.86


def test_ahakv_keeps_later_text_than_h2o(reading, default_model):
    """AhaKV, section 3.1: accumulated attention favours what was read first."""
    runtime, tokens = opened(default_model, "ahakv")
    with runtime:
        assert runtime.block_loop.read(tokens, lambda n: True)
        kept = all_positions(runtime.block_loop.cache)
    middle = (PROTECTION.n_sink + N_TOKENS - PROTECTION.recent) / 2  # what an unbiased choice would keep
    ahakv, h2o = (np.concatenate(cells).mean() for cells in (kept, reading.kept))
    assert h2o < middle < ahakv
    later = [cells.mean() > others.mean() for cells, others in zip(kept, reading.kept, strict=True)]
    assert np.mean(later) > 0.9


def test_caote_is_the_change_of_the_output_on_real_attention(reading):
    """CAOTE, Theorem 3.2, for the newest query of one query head of every KV head, each cell evicted in turn."""
    for head, _ in reading.heads:
        newest = head.newest_rows(1)
        one = replace(newest, queries=newest.queries[:1])
        (found,) = score(
            "tova+caote",
            keys=head.keys[None].astype(np.float32),
            values=head.values[None].astype(np.float32),
            positions=head.positions[None],
            queries=one.queries,
            query_positions=one.query_positions,
            scale=head.scale,
        )
        weights = attention(one)[0, 0]
        others = weights * (1 - np.eye(len(weights)))  # row j: without cell j
        outputs = others / others.sum(axis=1, keepdims=True) @ head.values
        changes = np.linalg.norm(weights @ head.values - outputs, axis=1)
        np.testing.assert_allclose(found, changes, rtol=1e-4, atol=1e-6 * changes.max())
