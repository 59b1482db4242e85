"""Every policy on plain arrays: the native version equals the float64 reference, and both keep the rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from policy_arrays import (
    BACKENDS,
    COMBINATIONS,
    EQUAL,
    KEYDIFFS,
    LARGE,
    ONE_RANKING,
    SHAPES,
    SHARED,
    SMALL,
    SPECS,
    VARIANTS,
    Shape,
    all_arrays,
    assert_close,
    assert_same_cells,
    beside,
    named,
    names_read,
    needed,
)

from edgekv.policies import POLICIES, parse_policy
from edgekv.policies.selection import Protection, cells_to_keep
from edgekv.scoring import score, select


def two_stages(first, second, positions, budget, protected, critical):
    """CriticalKV's Algorithm 1 with ties kept later: the cells that stay, ascending by position."""
    cells = [c for c in range(len(first)) if not protected[c]]
    cells.sort(key=lambda c: (first[c], positions[c]), reverse=True)
    n_first = math.floor(critical.alpha * (budget - protected.sum()))
    rest = sorted(cells[n_first:], key=lambda c: (second[c], positions[c]), reverse=True)
    kept = [*np.flatnonzero(protected), *cells[:n_first], *rest]
    return sorted(kept[:budget], key=lambda c: positions[c])


# ---- native equals reference ----


def test_every_base_and_both_ways_to_weigh_it_and_to_select_are_tested():
    wrappings = ["", "+caote", "+fastcaote", "+critical", "+caote+critical", "+fastcaote+critical"]
    assert set(COMBINATIONS) == {base + wrapping for base in POLICIES for wrapping in wrappings}


ROWS = [*((shape, dtype) for dtype in ("float32", "float16") for shape in SHAPES), (LARGE, "float16")]


@pytest.mark.parametrize(("spec", "rows"), beside(SPECS, ROWS, n=2), ids=named)
def test_native_equals_reference(spec, rows):
    shape, dtype = rows
    arguments = needed(spec, shape, dtype, layer=3)
    native, reference = (score(spec, **arguments, backend=backend) for backend in BACKENDS)
    for found, expected in zip(native, reference, strict=True):
        assert_close(found, expected)

    rules = {"n_sink": min(4, shape.n // 8), "recent": shape.n // 10}
    kept = (select(spec, **arguments, **rules, backend=backend) for backend in BACKENDS)
    for found, expected, scores in zip(*kept, reference, strict=True):
        if spec in ONE_RANKING and "critical" not in spec:
            assert_same_cells(found, expected, scores)
        else:  # an exchange at an earlier threshold may show as one of cells that are not alike, or of two heads
            assert spec in SHARED or len(found) == len(expected)
            assert len(np.setxor1d(found, expected)) <= 2


FEW_ROWS = [spec for spec in (*POLICIES, *VARIANTS) if 0 < parse_policy(spec).n_rows(SMALL.rows) < SMALL.rows]


@pytest.mark.parametrize("spec", FEW_ROWS)
def test_the_newest_rows_alone_score(spec):
    """The others of a shape with more rows than the policy reads change nothing."""
    native, reference = (score(spec, **needed(spec, SMALL), backend=backend) for backend in BACKENDS)
    for found, expected in zip(native, reference, strict=True):
        assert_close(found, expected)


RANKED = [s for s in ONE_RANKING if parse_policy(s).base.weights or "critical" not in s]


@pytest.mark.parametrize(("spec", "shape"), beside(RANKED, [*SHAPES, LARGE]), ids=named)
def test_native_selection_follows_from_native_scores(spec, shape):
    """Not one cell off: the scores that `score` gives decide, in critical's first stage those of the inner policy."""
    policy = parse_policy(spec)
    arguments = needed(spec, shape)
    scores = score(spec, **arguments)
    protection = Protection(min(4, shape.n // 8), max(shape.n // 10, policy.recent(arguments["budget"])))
    rules = {"n_sink": protection.n_sink, "recent": protection.recent}
    inner = score(policy.inner, **arguments) if policy.name == "critical" else None
    for g, kept in enumerate(select(spec, **arguments, **rules)):
        positions = arguments["positions"][g]
        if inner is None:
            expected = cells_to_keep(scores[g], positions, arguments["budget"], protection)
        else:
            protected = protection.mask(positions)
            expected = two_stages(inner[g], scores[g], positions, arguments["budget"], protected, policy)
        np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize(("spec", "backend"), beside(SPECS, BACKENDS))
def test_arrays_that_a_policy_does_not_read_change_nothing(spec, backend):
    arguments = needed(spec, SMALL)
    read = names_read(parse_policy(spec)) | {"positions"}
    spoilt = {name: np.full_like(array, np.nan) for name, array in all_arrays(SMALL).items() if name not in read}
    both = (score(spec, **arguments | others, backend=backend) for others in ({}, spoilt))
    np.testing.assert_array_equal(*both)


@pytest.mark.parametrize(("spec", "backend"), beside(SPECS, BACKENDS))
def test_arrays_that_a_policy_reads_matter(spec, backend):
    arguments = needed(spec, SMALL)
    scores = score(spec, **arguments, backend=backend)
    for name in names_read(parse_policy(spec)):
        other = np.random.default_rng(0).exponential(size=arguments[name].shape)
        assert (score(spec, **arguments | {name: other}, backend=backend) != scores).any(), name


# ---- rules that every policy keeps ----


@pytest.mark.parametrize(("spec", "backend"), beside(SPECS, BACKENDS))
def test_permuting_cells_permutes_scores_and_kept_cells(spec, backend):
    arguments = needed(spec, SMALL)
    order = np.random.default_rng(1).permutation(SMALL.n)
    moved = arguments | {
        name: arguments[name][:, order]
        for name in ("keys", "positions", "values", "accumulated")
        if arguments.get(name) is not None
    }
    scores = score(spec, **arguments, backend=backend)
    assert_close(score(spec, **moved, backend=backend), scores[:, order])

    kept = (select(spec, **a, backend=backend) for a in (arguments, moved))
    for g, (before, after) in enumerate(zip(*kept, strict=True)):
        assert_same_cells(order[after], before, scores[g])


@pytest.mark.parametrize(("spec", "backend"), beside(EQUAL, BACKENDS))
def test_selection_keeps_the_rules(spec, backend):
    """Exactly the budget, ascending, protected cells all there, and of the others none that scores below an evicted."""
    policy = parse_policy(spec)
    arguments = needed(spec, SMALL, budget=100)
    n_sink = 20
    pinned = ((300, 400), (500, 510))
    scores = score(spec, **arguments, backend=backend)
    first = score(policy.inner, **arguments, backend=backend) if policy.name == "critical" else scores
    kept = select(spec, **arguments, n_sink=n_sink, recent=15, pinned=pinned, backend=backend)
    for g, cells in enumerate(kept):
        where = arguments["positions"][g]
        assert len(cells) == 100
        assert (np.diff(where[cells]) > 0).all()
        protected = (where < n_sink) | (where >= np.sort(where)[-max(15, policy.recent(100))])
        for p0, p1 in pinned:
            protected |= (where >= p0) & (where < p1)
        assert 30 < protected.sum() < 90
        stays = np.isin(np.arange(SMALL.n), cells)
        assert stays[protected].all()
        chosen = np.flatnonzero(stays & ~protected)
        if policy.name == "critical":  # the best of stage 1 are there; the others hold their own in stage 2
            n_first = math.floor(policy.alpha * (100 - protected.sum()))
            best = chosen[np.argsort(first[g][chosen])[len(chosen) - n_first :]]
            others = np.setdiff1d(np.flatnonzero(~protected), best)
            assert n_first == 0 or first[g][best].min() >= first[g][others].max()
            chosen = np.setdiff1d(chosen, best)
        assert len(chosen) == 0 or scores[g][chosen].min() >= scores[g][~stays].max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("alpha", [i / 10 for i in range(11)])
def test_critical_fills_its_share_by_the_score_alone(alpha, backend):
    """Of b cells floor(alpha * b) by attention; the second stage takes those of least attention and largest value."""
    shape = Shape(d=32, d_v=32, n=40, heads=1, group=1, rows=1)
    arguments = needed("tova+critical", shape)
    weakest = np.argsort(score("tova", **needed("tova", shape), backend="reference")[0])[:20]
    values = np.ones_like(arguments["values"])
    values[0, weakest] = 1e9
    for budget in (5, 10, 20):
        spec = f"tova+critical(alpha={alpha})"
        (kept,) = select(spec, **arguments | {"values": values, "budget": budget}, backend=backend)
        assert np.isin(weakest, kept).sum() == budget - math.floor(alpha * budget)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", [s for s in KEYDIFFS if "kernel=1)" in s])
def test_ties_keep_the_later_position(spec, backend):
    positions = np.random.default_rng(2).permutation(40)[None]
    keys = np.ones((1, 40, 32))
    (kept,) = select(spec, keys=keys, positions=positions, budget=10, n_sink=2, backend=backend)
    np.testing.assert_array_equal(positions[0][kept], [0, 1, *range(32, 40)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrapping", ["", "+caote", "+critical"])
@pytest.mark.parametrize("window", [1, 5, 9])
def test_snapkv_protects_its_window(window, wrapping, backend):
    """The newest cells stay though the rows look elsewhere, with any wrapper; older ones do not."""
    spec = f"snapkv(window={window}, kernel=1){wrapping}"
    arguments = needed(spec, SMALL, budget=60)
    newest = np.argsort(arguments["positions"], axis=1)[:, -20:]
    keys = arguments["keys"].copy()
    queries = np.broadcast_to(arguments["queries"][:1, :1], arguments["queries"].shape)
    for g in range(SMALL.heads):
        keys[g, newest[g]] = -10 * queries[0, 0]
    arguments |= {"keys": keys, "queries": queries}
    for cells, new in zip(select(spec, **arguments, backend=backend), newest, strict=True):
        np.testing.assert_array_equal(np.isin(new, cells), [False] * (20 - window) + [True] * window)
