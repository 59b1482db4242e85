"""Every policy on plain arrays: the native version equals the float64 reference, and both keep the rules."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgekv import BudgetError, ConfigError, NativeError, _native
from edgekv.policies import KeyDiff, parse_policy, score, select
from edgekv.policies.arrays import native_rows
from edgekv.policies.keydiff import ANCHORS, METRICS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference_quant import rotate

POOLINGS = ("kernel=1", "kernel=15", "kernel=15, pool=max")
KEYDIFFS = [
    f"keydiff(anchor={anchor}, metric={metric}, {pooling})"
    for anchor in ANCHORS
    for metric in METRICS
    if anchor != "pairwise" or metric == "cosine"
    for pooling in POOLINGS
]
SPECS = ["sink", *(f"random(seed=7, {pooling})" for pooling in POOLINGS), *KEYDIFFS]
SHAPES = [
    (32, 1, 1),
    (33, 50, 1),
    (64, 2, 8),
    (96, 127, 3),
    (128, 1000, 2),
    (256, 600, 1),
    (64, 5000, 1),
]  # d, n, heads
BACKENDS = ("native", "reference")

# float32 sums over a few thousand rows agree with float64 ones to this share of a head's largest score
ROUNDING = 1e-5


@functools.cache
def head_data(d, n, heads, dtype="float32"):
    """Keys (heads, n, d) that share a direction, as a model's do, and gappy positions (heads, n) in no order."""
    rng = np.random.default_rng((d, n, heads))
    keys = rng.standard_normal((heads, n, d)) + 2 * rng.standard_normal((heads, 1, d))
    positions = [rng.permutation(np.sort(rng.choice(4 * n + 8, n, replace=False))) for _ in range(heads)]
    keys, positions = keys.astype(dtype), np.array(positions, dtype=np.int32)
    keys.flags.writeable = positions.flags.writeable = False
    return keys, positions


def assert_close(found, expected):
    """Within float32 rounding; far inside the promised 1e-3."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max(initial=0))


def assert_same_cells(found, expected, scores):
    """The same cells stay, but for cells at the threshold.

    A cell may stand for another where the reference scores of all exchanged cells lie within float32 rounding of one
    another: no other exchange is possible when the native scores are right to that rounding.
    """
    assert len(found) == len(expected)
    exchanged = np.setxor1d(found, expected)
    if len(exchanged):
        assert np.ptp(scores[exchanged]) <= 2 * ROUNDING * np.abs(scores).max()


def score_rows(spec, rows, kind, d, positions, rotation=0):
    """Native scores (n,) of one head's rows as a cache stores them."""
    fields = _native.Policy(**parse_policy(spec).native_fields())
    described = native_rows(rows, kind, d, rotation)
    scores = np.empty(len(rows), dtype=np.float32)
    arguments = (ctypes.byref(fields), ctypes.byref(described), positions.ctypes.data, 0, 0, scores.ctypes.data)
    _native.call("edgekv_score", *arguments)
    return scores


# ---- native equals reference ----


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_native_equals_reference(spec, shape, dtype):
    keys, positions = head_data(*shape, dtype)
    n = shape[1]
    policy = parse_policy(spec)
    expected = [policy.score(keys[g], positions[g], layer=3, head=g) for g in range(len(keys))]
    for found, reference in zip(score(spec, keys=keys, positions=positions, layer=3), expected, strict=True):
        assert_close(found, reference)

    rules = {"keys": keys, "positions": positions, "layer": 3, "budget": max(1, n // 3), "n_sink": min(4, n // 8)}
    rules["recent"] = n // 10
    kept = zip(select(spec, **rules), select(spec, **rules, backend="reference"), expected, strict=True)
    for found, reference, scores in kept:
        assert_same_cells(found, reference, scores)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0], ids=lambda k: k.name)
@pytest.mark.parametrize(("d", "rotation"), [(32, 0), (96, 0), (64, 64), (192, 64), (256, 128), (128, 128)])
@pytest.mark.parametrize("spec", KEYDIFFS)
def test_quantised_rows_equal_the_reference_on_their_values(spec, d, rotation, kind):
    """Rows of a quantised cache: rotated, rounded, scored where they lie; the reference sees what they stand for."""
    keys, positions = (array[0] for array in head_data(d, 300, 1))
    rows = gguf.quants.quantize(rotate(keys.astype(np.float64), rotation).astype(np.float32), kind)
    values = rotate(gguf.quants.dequantize(rows, kind).astype(np.float64), rotation)
    expected = parse_policy(spec).score(values, positions)
    assert_close(score_rows(spec, rows, int(kind), d, positions, rotation), expected)


@pytest.mark.parametrize(("d", "rotation"), [(64, 64), (192, 64), (128, 128), (256, 128)])
@pytest.mark.parametrize("spec", KEYDIFFS)
def test_rotated_rows_score_as_plain_ones(spec, d, rotation):
    keys, positions = (array[0] for array in head_data(d, 400, 1))
    rotated = rotate(keys.astype(np.float64), rotation).astype(np.float32)
    found = score_rows(spec, rotated, 0, d, positions, rotation)
    assert_close(found, score_rows(spec, keys, 0, d, positions))


@pytest.mark.parametrize("spec", ["sink", "random"])
def test_scores_without_keys_are_exact(spec):
    keys, positions = head_data(32, 500, 2)
    native, reference = (score(spec, keys=keys, positions=positions, backend=backend) for backend in BACKENDS)
    np.testing.assert_array_equal(native, reference)


@pytest.mark.parametrize("anchor", ANCHORS)
def test_keys_of_norm_zero(anchor):
    """No direction, no similarity: 0, not a division by zero."""
    keys, positions = head_data(32, 50, 1)
    keys = keys.copy()
    keys[:, ::3] = 0
    native, reference = (
        score(f"keydiff(anchor={anchor})", keys=keys, positions=positions, backend=backend) for backend in BACKENDS
    )
    assert (native[:, ::3] == 0).all()
    assert_close(native, reference)
    nothing = score(f"keydiff(anchor={anchor})", keys=np.zeros((1, 5, 32)), positions=positions[:, :5])
    assert (nothing == 0).all()


# ---- rules that every policy keeps ----


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", SPECS)
def test_permuting_cells_permutes_scores_and_kept_cells(spec, backend):
    keys, positions = head_data(64, 200, 2)
    order = np.random.default_rng(1).permutation(200)
    scores = score(spec, keys=keys, positions=positions, backend=backend)
    moved = score(spec, keys=keys[:, order], positions=positions[:, order], backend=backend)
    assert_close(moved, scores[:, order])

    kept = select(spec, keys=keys, positions=positions, budget=60, backend=backend)
    moved = select(spec, keys=keys[:, order], positions=positions[:, order], budget=60, backend=backend)
    for g in range(2):
        assert_same_cells(order[moved[g]], kept[g], scores[g])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", SPECS)
def test_selection_keeps_the_rules(spec, backend):
    """Exactly the budget, ascending, protected cells all there, and of the others none that scores below an evicted."""
    keys, positions = head_data(32, 300, 2)
    scores = score(spec, keys=keys, positions=positions, backend=backend)
    pinned = [(200, 260), (700, 710)]
    rules = {"budget": 100, "n_sink": 20, "recent": 15, "pinned": pinned}
    for g, kept in enumerate(select(spec, keys=keys, positions=positions, backend=backend, **rules)):
        where = positions[g]
        assert len(kept) == 100
        assert (np.diff(where[kept]) > 0).all()
        protected = (where < 20) | (where >= np.sort(where)[-15])
        for p0, p1 in pinned:
            protected |= (where >= p0) & (where < p1)
        stays = np.isin(np.arange(300), kept)
        assert stays[protected].all()
        assert scores[g][stays & ~protected].min() >= scores[g][~stays].max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", [s for s in KEYDIFFS if "kernel=1)" in s])
def test_ties_keep_the_later_position(spec, backend):
    positions = np.random.default_rng(2).permutation(40)[None]
    keys = np.ones((1, 40, 32))
    (kept,) = select(spec, keys=keys, positions=positions, budget=10, n_sink=2, backend=backend)
    np.testing.assert_array_equal(positions[0][kept], [0, 1, *range(32, 40)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_window_keeps_the_newest(backend):
    """keydiff(window=0.2) of 50 cells: the newest ten, though they resemble the rest most."""
    keys, positions = head_data(64, 200, 1)
    newest = np.argsort(positions[0])[-10:]
    keys = keys.copy()
    keys[0, newest] = keys[0].mean(axis=0)
    arguments = {"keys": keys, "positions": positions, "budget": 50, "backend": backend}
    (plain,) = select("keydiff", **arguments)
    (windowed,) = select("keydiff(window=0.2)", **arguments)
    assert not np.isin(newest, plain).any()
    assert np.isin(newest, windowed).all()
    assert len(windowed) == 50


@pytest.mark.parametrize("backend", BACKENDS)
def test_sinks_of_the_policy_go_before_those_of_the_call(backend):
    keys, positions = head_data(32, 100, 1)
    arguments = {"keys": keys, "positions": positions, "budget": 10, "backend": backend, "n_sink": 8}
    (kept,) = select("sink(n_sink=0)", **arguments)
    np.testing.assert_array_equal(positions[0][kept], np.sort(positions[0])[-10:])


def test_pairwise_anchor_selects_as_unit_mean():
    """eq. 7 is eq. 8 times the anchor's norm, the same for every cell: other scores, the same order."""
    keys, positions = head_data(64, 500, 3)
    scores = score("keydiff(anchor=pairwise)", keys=keys, positions=positions)
    both = (select(KeyDiff(anchor=a), keys=keys, positions=positions, budget=99) for a in ("pairwise", "unit-mean"))
    for pairwise, unit_mean, reference in zip(*both, scores, strict=True):
        assert_same_cells(pairwise, unit_mean, reference)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pairwise_anchor_is_the_mean_cosine_of_all_pairs(dtype):
    keys, positions = head_data(32, 60, 1, dtype)
    unit = keys[0].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    assert_close(score("keydiff(anchor=pairwise)", keys=keys, positions=positions)[0], -(unit @ unit.T).mean(axis=1))


# ---- the random control ----


def test_random_number_belongs_to_the_token():
    """A cell's number depends on seed, layer, head and position, not on its neighbours or its key."""
    keys, positions = head_data(32, 100, 2)
    scores = score("random(seed=1)", keys=keys, positions=positions)
    np.testing.assert_array_equal(
        score("random(seed=1)", keys=-keys[:, 50:], positions=positions[:, 50:]), scores[:, 50:]
    )
    same = np.tile(positions[:1], (2, 1))
    heads = score("random(seed=1)", keys=keys, positions=same)
    others = [
        heads[1],
        score("random(seed=2)", keys=keys, positions=same)[0],
        score("random(seed=1)", keys=keys, positions=same, layer=1)[0],
    ]
    for other in others:
        assert (other != heads[0]).mean() > 0.99


def test_random_numbers_are_uniform():
    positions = np.arange(20_000, dtype=np.int32)[None]
    (scores,) = score("random", keys=np.zeros((1, 20_000, 32), np.float16), positions=positions)
    counts, _ = np.histogram(scores, bins=20, range=(0, 1))
    assert counts.sum() == 20_000
    assert (np.abs(counts - 1000) < 5 * np.sqrt(1000)).all()


# ---- edges and errors ----


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("n", "budget"), [(0, 3), (1, 1), (1, 5), (30, 30), (30, 31)])
def test_everything_stays_within_the_budget(spec, n, budget, backend):
    """Where no cell must go none goes, whatever is protected."""
    keys, positions = (array[:, :n] for array in head_data(32, 127, 1))
    arguments = {"keys": keys, "positions": positions, "backend": backend}
    assert np.isfinite(score(spec, **arguments)).all()
    (kept,) = select(spec, **arguments, budget=budget, n_sink=1000, recent=1000)
    np.testing.assert_array_equal(kept, np.argsort(positions[0]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spec", KEYDIFFS)
def test_keys_that_are_not_finite_are_an_error(spec, bad, backend):
    keys, positions = head_data(32, 60, 1)
    keys = keys.copy()
    keys[0, 17, 5] = bad
    with pytest.raises(NativeError, match=r"score of position \d+ is not finite.*keys hold NaN or infinity"):
        select(spec, keys=keys, positions=positions, budget=20, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["sink", "random(kernel=7)"])
def test_policies_that_read_no_keys_do_not_mind_them(spec, backend):
    positions = np.arange(10)[None]
    (kept,) = select(spec, keys=np.full((1, 10, 32), np.nan), positions=positions, budget=5, backend=backend)
    assert len(kept) == 5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "protection",
    [
        {"n_sink": 11},
        {"recent": 11},
        {"pinned": [(20, 31)]},
        {"n_sink": 4, "recent": 4, "pinned": [(20, 22), (30, 31)]},
    ],
    ids=str,
)
def test_protected_cells_beyond_the_budget_are_an_error(protection, backend):
    arguments = {"keys": np.ones((1, 50, 32)), "positions": np.arange(50)[None], "backend": backend}
    with pytest.raises(BudgetError, match=r"11 protected cells exceed the budget of 10; raise the budget"):
        select("keydiff", **arguments, budget=10, **protection)
    (kept,) = select("keydiff", **arguments, budget=11, **protection)
    assert len(kept) == 11


@pytest.mark.parametrize("backend", BACKENDS)
def test_protections_that_overlap_count_once(backend):
    arguments = {"keys": np.ones((1, 50, 32)), "positions": np.arange(50)[None], "backend": backend}
    (kept,) = select("keydiff", **arguments, budget=10, n_sink=8, recent=2, pinned=[(0, 8), (4, 6), (49, 60)])
    np.testing.assert_array_equal(kept, [*range(8), 48, 49])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"positions": np.arange(9)[None]}, r"keys \(1, 10, 32\) and positions \(1, 9\) do not match"),
        ({"keys": np.ones((10, 32))}, r"keys \(10, 32\)"),
        ({"budget": 0}, "budget=0"),
        ({"budget": -1}, "budget=-1"),
        ({"n_sink": -1}, "n_sink=-1"),
        ({"n_sink": 1 << 32}, "n_sink=4294967296"),
        ({"recent": -1}, "recent=-1"),
        ({"pinned": [(5, 3)]}, r"\[5, 3\)"),
        ({"pinned": [(0, 1 << 31)]}, r"\[0, 2147483648\)"),
        ({"backend": "numpy"}, "backend='numpy' is unknown; possible: native, reference"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_named(wrong, message):
    arguments = {"keys": np.ones((1, 10, 32)), "positions": np.arange(10)[None], "budget": 5}
    with pytest.raises(ConfigError, match=message):
        select("keydiff", **(arguments | wrong))


def test_native_rows_are_checked():
    """Rows that no cache holds: another type, part of a block, a rotation that does not divide the row."""
    positions = np.arange(4, dtype=np.int32)
    rows = np.zeros((4, 96), dtype=np.float32)
    for kind, d, rotation in [(3, 96, 0), (8, 80, 0), (0, 96, 64), (0, 96, 3), (0, 0, 0), (0, 97, 0)]:
        with pytest.raises(ConfigError, match=r"rows"):
            score_rows("keydiff", rows, kind, d, positions, rotation)
