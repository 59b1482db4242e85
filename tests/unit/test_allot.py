"""Budgets that heads share by their scores, native and reference: exact sums, caps, floors, ties, what is refused."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
from diagonals import diagonal
from policy_arrays import BACKENDS, SHARED, SMALL, Shape, budget_of, names_read, needed

from edgekv import BudgetError, ConfigError, NativeError, PolicyError
from edgekv.binding import library, structs
from edgekv.policies import Head, parse_policy
from edgekv.policies.ada import allot
from edgekv.policies.critical import wo_norms
from edgekv.policies.selection import Protection
from edgekv.scoring import budgets, score, select

NO_LIMIT = 2**32 - 1
NONE = Protection()


def allotted(heads, budget, backend, protection=NONE, safeguard=0.2, largest=None):
    """Budgets of heads given as (scores, positions)."""
    scores = [np.asarray(scores, dtype=np.float32) for scores, _ in heads]
    positions = [np.asarray(positions, dtype=np.int32) for _, positions in heads]
    if backend == "reference":
        return allot(scores, positions, budget, protection, safeguard=safeguard, largest=largest)
    policy = structs.Policy(**parse_policy("tova+ada").native_fields() | {"safeguard": safeguard})
    scored = (structs.Scored * len(heads))(*map(structs.Scored.of, scores, positions))
    found = np.empty(len(heads), dtype=np.uint32)
    kept = structs.Protection.of(protection.n_sink, protection.recent, protection.pinned)
    limit = NO_LIMIT if largest is None else largest
    arguments = (ctypes.byref(policy), scored, len(heads), ctypes.byref(kept), budget, limit, found.ctypes.data)
    library.call("edgekv_allot", *arguments)
    return found.tolist()


def by_hand(heads, budget, protection, safeguard, largest):
    """Return the allotment made from a sorted list of cells, one cell after the other."""
    found = [0] * len(heads)
    cells = []
    for g, (scores, positions) in enumerate(heads):
        stays = protection.mask(np.asarray(positions))
        found[g] = int(stays.sum())
        cells += [(-s, -p, g) for s, p, stay in zip(scores, positions, stays, strict=True) if not stay]
    for _, _, g in sorted(cells)[: budget * len(heads) - sum(found)]:
        found[g] += 1
    targets = [f + safeguard * (budget - f) for f in found]
    caps = [min(len(scores), largest) for scores, _ in heads]
    given = [min(math.floor(t), cap) for t, cap in zip(targets, caps, strict=True)]
    while sum(given) < min(budget * len(heads), sum(caps)):
        lacking = max((targets[g] - given[g], -g) for g in range(len(heads)) if given[g] < caps[g])
        given[-lacking[1]] += 1
    return given


def random_heads(rng, n_heads, n_most, levels=None):
    """Heads that hold different numbers of cells in any order, of scores with so many levels; None = any."""
    heads = []
    for _ in range(n_heads):
        n = int(rng.integers(n_most // 3, n_most + 1))
        scores = rng.random(n) if levels is None else rng.integers(0, levels, n)
        heads.append(((scores * rng.uniform(0.5, 1)).astype(np.float32), rng.permutation(2 * n_most)[:n]))
    return heads


# ---- by hand ----


@pytest.mark.parametrize("backend", BACKENDS)
def test_best_scores_of_all_heads_say_who_has_how_many(backend):
    heads = [([9, 8, 7, 6, 1], range(5)), ([5, 4, 1, 1, 1], range(5)), ([3, 2, 1, 1, 1], range(5))]
    assert allotted(heads, 2, backend, safeguard=0) == [4, 2, 0]
    assert allotted(heads, 2, backend, safeguard=0.5) == [3, 2, 1]
    assert allotted(heads, 2, backend, safeguard=1) == [2, 2, 2]
    assert allotted(heads, 2, backend, safeguard=0.2) == [4, 2, 0]  # 3.6, 2, 0.4: the first lacks most
    assert allotted(heads, 2, backend, safeguard=0.3) == [3, 2, 1]  # 3.4, 2, 0.6


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties_go_to_the_later_position_then_to_the_first_head(backend):
    same = [7, 7, 7, 7]
    assert allotted([(same, [0, 1, 2, 3]), (same, [4, 5, 6, 7])], 2, backend, safeguard=0) == [0, 4]
    assert allotted([(same, [1, 7, 3, 5]), (same, [0, 6, 2, 4])], 2, backend, safeguard=0) == [2, 2]
    assert allotted([(same, [0, 1, 2, 3]), (same, [0, 1, 2, 3]), (same, [0, 1, 2, 3])], 1, backend, safeguard=0) == [
        1,
        1,
        1,
    ]
    assert allotted([([7, 7], [5, 6]), ([7, 7], [5, 6])], 1, backend, safeguard=0) == [1, 1]
    assert allotted([([7, 7, 7], [5, 6, 9]), ([7, 7, 7], [5, 6, 8])], 2, backend, safeguard=0) == [2, 2]
    # Two heads get 3 cells; the odd cell, at position 5, is the first head's.
    first = [([7, 7, 7], [0, 5, 6]), ([7, 7, 7], [1, 5, 6]), ([0, 0, 0], [0, 5, 6])]
    assert allotted(first, 1, backend, safeguard=0) == [2, 1, 0]
    # what is left goes to the first of those who lack as much
    assert allotted([([4, 3, 2, 1], range(4)), ([0] * 4, range(4))], 1, backend, safeguard=0.5) == [2, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_protected_cells_are_counted_first_and_compete_with_none(backend):
    """Two sinks a head, of the highest scores: they take two cells, and only the others compare."""
    heads = [([99, 99, 5, 4, 3], range(5)), ([99, 99, 2, 1, 0], range(5))]
    assert allotted(heads, 3, backend, Protection(n_sink=2), safeguard=0) == [4, 2]
    assert allotted(heads, 3, backend, Protection(n_sink=2, recent=1), safeguard=0) == [3, 3]
    assert allotted(heads, 4, backend, Protection(pinned=((0, 2), (3, 4))), safeguard=0) == [5, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_head_cannot_take_the_others_get(backend):
    heads = [([9, 8, 7, 6, 5, 4], range(6)), ([3, 2, 1, 0], range(4)), ([3.5, 2.5, 1.5, 0], range(4))]
    assert allotted(heads, 3, backend, safeguard=0) == [6, 1, 2]
    assert allotted(heads, 3, backend, safeguard=0, largest=4) == [4, 2, 3]
    assert allotted(heads, 3, backend, safeguard=0, largest=3) == [3, 3, 3]
    few = [([1, 1], range(2)), ([9] * 9, range(9)), ([9] * 9, range(9))]
    assert allotted(few, 5, backend, safeguard=1) == [2, 7, 6]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("safeguard", [0, 0.2, 1])
def test_everything_stays_where_it_fits(safeguard, backend):
    """However it is spread, and however much of it is protected."""
    heads = [([1] * 9, range(9)), ([5] * 2, range(2)), ([], [])]
    assert allotted(heads, 4, backend, Protection(n_sink=9), safeguard) == [9, 2, 0]
    assert allotted(heads, 4, backend, Protection(n_sink=9), safeguard, largest=9) == [9, 2, 0]
    assert allotted(heads, 4, backend, NONE, safeguard, largest=8) == [8, 2, 0]


# ---- properties ----

CASES = [
    (seed, n_heads, n_most, levels)
    for seed, (n_heads, n_most, levels) in enumerate(
        [(1, 30, None), (2, 3, 2), (3, 50, 4), (8, 200, None), (8, 200, 1), (32, 40, 3), (300, 25, None), (300, 25, 5)]
    )
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("case", "safeguard"), diagonal(CASES, [0, 0.1, 0.2, 1 / 3, 0.5, 0.9, 1], n=3))
def test_budgets_are_those_of_a_sorted_list(case, safeguard, backend):
    """And sum exactly; none above what a head holds or may hold, none below its protected cells."""
    seed, n_heads, n_most, levels = case
    rng = np.random.default_rng(seed)
    for _ in range(3):
        heads = random_heads(rng, n_heads, n_most, levels)
        budget = int(rng.integers(max(1, n_most // 4), n_most))
        protection = Protection(
            n_sink=int(rng.integers(0, budget // 3 + 1)),
            recent=int(rng.integers(0, budget // 3 + 1)),
            pinned=((n_most, n_most + budget // 4),),
        )
        largest = int(rng.integers(budget, n_most + 1))
        found = allotted(heads, budget, backend, protection, safeguard, largest)
        assert found == by_hand(heads, budget, protection, safeguard, largest)
        held = [len(scores) for scores, _ in heads]
        assert sum(found) == min(n_heads * budget, sum(min(n, largest) for n in held))
        assert all(b <= min(n, largest) for b, n in zip(found, held, strict=True))
        protected = [protection.mask(positions).sum() for _, positions in heads]
        assert all(b >= p for b, p in zip(found, protected, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_order_of_heads_and_cells_does_not_matter(backend):
    """No two scores are alike, and nothing has to be rounded."""
    rng = np.random.default_rng(3)
    scores = rng.permutation(6 * 40).reshape(6, 40)
    heads = [(row, rng.permutation(80)[:40]) for row in scores]
    protection = Protection(n_sink=8, recent=3)
    found = allotted(heads, 20, backend, protection, safeguard=0)
    assert min(found) < 20 < max(found)
    order = rng.permutation(6)
    shuffled = []
    for g in order:
        cells = rng.permutation(40)
        shuffled.append((heads[g][0][cells], heads[g][1][cells]))
    assert allotted(shuffled, 20, backend, protection, safeguard=0) == [found[g] for g in order]


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_safeguard_is_more_even(backend):
    heads = random_heads(np.random.default_rng(4), 8, 200)
    spans = [np.ptp(allotted(heads, 60, backend, safeguard=s)) for s in (0, 0.25, 0.5, 0.75, 1)]
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > spans[2] > spans[4] == 0


# ---- what is refused ----


@pytest.mark.parametrize("backend", BACKENDS)
def test_impossible_budgets_are_an_error(backend):
    heads = [([1] * 9, range(9)), ([2] * 9, range(9))]
    with pytest.raises(BudgetError, match=r"^5 protected cells exceed the budget of 4; raise the budget or"):
        allotted(heads, 4, backend, Protection(n_sink=3, recent=2))
    with pytest.raises(ConfigError, match=r"^largest=3 is less than the budget of 4; raise it or lower the budget"):
        allotted(heads, 4, backend, largest=3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("budget", [1, 5])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_an_error(bad, budget, backend):
    """Of any head, whether all fits or not, protected or not."""
    for protection in (NONE, Protection(n_sink=8)):
        with pytest.raises(NativeError, match="score of position 7 is not finite"):
            allotted([([1, 2], [3, 4]), ([5, bad, 6], [6, 7, 8])], budget, backend, protection)


def test_the_library_refuses_what_no_policy_is():
    """A spec cannot say these."""
    fields = parse_policy("tova+ada").native_fields()
    wrong = [
        {"spread": 4},
        {"spread": -1},
        {"safeguard": 1.5},
        {"safeguard": np.nan},
        {"pyramid": 0.5},
        {"pyramid": np.nan},
    ]
    wrong += [{"base": parse_policy(base).native_base} for base in ("sink", "random")]
    wrong += [{"spread": 2, "pyramid": 20.0}, {"spread": 3, "pyramid": 20.0}]
    found = np.empty(2, dtype=np.uint32)
    for change in [{}, *wrong]:
        policy = structs.Policy(**fields | change)
        arguments = (ctypes.byref(policy), 2, 5, 0, 10, found.ctypes.data)
        if not change:
            library.call("edgekv_layer_budgets", *arguments)
            continue
        with pytest.raises(ConfigError, match=r"policy\.(spread|safeguard|pyramid)"):
            library.call("edgekv_layer_budgets", *arguments)


# ---- policies ----

MANY = Shape(d=32, d_v=32, n=120, heads=24, group=2, rows=16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [SMALL, MANY], ids=str)
@pytest.mark.parametrize("spec", SHARED)
def test_budgets_are_how_many_cells_stay(spec, shape, backend):
    policy = parse_policy(spec)
    arguments = needed(spec, shape, n_sink=4, recent=5, backend=backend)
    found = budgets(spec, **arguments)
    assert sum(found) == shape.heads * budget_of(spec, shape)
    assert all(isinstance(cells, int) for cells in found)
    assert (len(set(found)) > 1) == (policy.native_fields()["safeguard"] < 1)
    kept = select(spec, **arguments)
    assert [len(cells) for cells in kept] == found
    for cells, positions in zip(kept, arguments["positions"], strict=True):
        assert (np.diff(positions[cells]) > 0).all()
        protected = Protection(4, max(5, policy.recent(budget_of(spec, shape)))).mask(positions)
        assert protected.sum() > 4
        assert np.isin(np.flatnonzero(protected), cells).all()


@pytest.mark.parametrize("spec", SHARED)
def test_native_budgets_are_those_of_the_reference(spec):
    """Of many heads; one cell may change its head where float32 cannot tell scores apart."""
    found, expected = (budgets(spec, **needed(spec, MANY, recent=3, backend=backend)) for backend in BACKENDS)
    assert np.abs(np.subtract(found, expected)).sum() <= 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", [s for s in SHARED if "ada(safeguard" not in s])
def test_budgets_follow_from_the_weights_of_the_base(spec, backend):
    """The weights are the base's scores, or their softmax over the head's cells for keys, whatever wraps the base."""
    policy = parse_policy(spec)
    arguments = needed(spec, SMALL, backend=backend)
    names = names_read(policy.base) | {"keys", "positions", "budget", "scale", "softcap", "backend"}
    weights = score(policy.base, **{name: value for name, value in arguments.items() if name in names})
    if not policy.base.weights:
        weights = np.exp(weights.astype(np.float64))
        weights /= weights.sum(axis=1, keepdims=True)
    budget = arguments["budget"]
    heads = list(zip(weights, arguments["positions"], strict=True))
    expected = by_hand(heads, budget, Protection(recent=policy.recent(budget)), 0.2, SMALL.n)
    assert np.abs(np.subtract(budgets(spec, **arguments), expected)).sum() <= 2  # one exchange at the threshold


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", SHARED)
def test_within_a_head_what_ada_wraps_chooses(spec, backend):
    """Of as many cells as the head has; scores still see the mean budget, on which AhaKV's gains depend."""
    policy = parse_policy(spec)
    inner = policy
    while inner.name in ("ada", "pyramid"):
        inner = inner.inner
    arguments = needed(spec, SMALL)
    found = select(spec, **arguments, backend=backend)
    protection = Protection(recent=policy.recent(arguments["budget"]))
    for g, cells in enumerate(found):
        head = head_of(arguments, g, policy)
        expected = inner.keep(head, protection, len(cells))
        assert len(np.setxor1d(cells, expected)) <= (2 if backend == "native" else 0)
        assert policy.keep(head, protection, len(cells)).tolist() == expected.tolist()
        assert len(policy.keep(head, protection)) == head.budget == arguments["budget"]


@pytest.mark.parametrize("wrapping", ["", "+critical", "+caote"])
def test_gains_follow_the_mean_budget(wrapping):
    """A wide head has more cells than tokens were seen: by its own budget AhaKV would see nothing (lambda = 0)."""
    spec = f"ahakv(floor=off, value_prior=off){wrapping}+ada(safeguard=0)"
    arguments = needed(spec, SMALL, tokens_seen=budget_of(spec, SMALL) + 6, accumulated=None)
    arguments |= {"keys": arguments["keys"] * [[[10]], [[0.3]]], "queries": arguments["queries"][:, -4:]}
    native, reference = (select(spec, **arguments, backend=backend) for backend in BACKENDS)
    assert len(reference[1]) > arguments["tokens_seen"]
    for found, expected in zip(native, reference, strict=True):
        assert len(np.setxor1d(found, expected)) <= 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrapping", ["", "+fastcaote", "+critical"])
def test_a_head_may_keep_nothing(wrapping, backend):
    """Two cells hold all attention of the first head, ten share that of the second."""
    keys = np.zeros((2, 10, 32))
    keys[0, 4:6, 0] = 100
    ones, values = np.ones((2, 10, 32)), np.random.default_rng(0).standard_normal((2, 10, 32))
    arguments = {"keys": keys, "values": values, "queries": ones[:, :1], "w_o": np.ones((2, 32, 8))}
    arguments |= {"positions": np.tile(np.arange(10), (2, 1)), "backend": backend}
    kept = select(f"tova{wrapping}+ada(safeguard=0)", **arguments, budget=1)
    assert [cells.tolist() for cells in kept] == [[4, 5], []]


def head_of(arguments, g, policy):
    """One head of the arguments of `select`."""

    per_head = {
        name: arguments[name][g] for name in ("keys", "positions", "values", "accumulated") if name in arguments
    }
    heads = len(arguments["keys"])
    if "queries" in arguments:
        queries = arguments["queries"]
        last = int(arguments["positions"].max())
        rows = np.arange(last - queries.shape[1] + 1, last + 1, dtype=np.int32)
        per_head |= {"queries": queries.reshape(heads, -1, *queries.shape[1:])[g], "query_positions": rows}
    if "w_o" in arguments:
        w_o = arguments["w_o"].reshape(heads, -1, *arguments["w_o"].shape[1:])[g]
        per_head["wo_norm"] = wo_norms(per_head["values"], w_o)
    return Head(**per_head, budget=arguments["budget"], head=g)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_so_far_apart_that_weights_vanish_still_rank_within_a_head(backend):
    """Norms of 1 to 1,000: in float32 nearly all weights are 0, yet the smaller norms stay."""
    norms = np.random.default_rng(0).permutation(np.arange(1, 81) * 12.5).reshape(2, 40)
    keys = norms[:, :, None] * np.eye(32)[0]
    arguments = {"keys": keys, "positions": np.tile(np.arange(40), (2, 1)), "budget": 10, "backend": backend}
    for g, cells in enumerate(select("l2norm+ada", **arguments)):
        assert len(cells) >= 2
        np.testing.assert_array_equal(cells, np.sort(np.argsort(norms[g])[: len(cells)]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["keydiff", "snapkv+critical", "random+pyramid", "sink+pyramid"])
def test_heads_that_share_nothing_have_the_budget_or_all_they_hold(spec, backend):
    arguments = needed(spec, SMALL, backend=backend)
    assert budgets(spec, **arguments) == [arguments["budget"]] * SMALL.heads
    assert budgets(spec, **arguments | {"budget": 10**6}) == [SMALL.n] * SMALL.heads


@pytest.mark.parametrize("backend", BACKENDS)
def test_pyramid_changes_nothing_within_a_layer(backend):
    for base in ("snapkv+critical", "keydiff", "tova+ada"):
        arguments = needed(base, SMALL, backend=backend)
        plain, falling = (select(spec, **arguments) for spec in (base, f"{base}+pyramid"))
        for before, after in zip(plain, falling, strict=True):
            np.testing.assert_array_equal(before, after)


def test_heads_of_different_budgets_share_nothing():
    arguments = needed("tova", SMALL)
    policy = parse_policy("tova+ada")
    heads = [head_of(arguments | {"budget": 20 + g}, g, policy) for g in range(2)]
    with pytest.raises(ConfigError, match=r"have the budgets \[20, 21\]; give one, the same for all"):
        policy.head_budgets(heads, NONE)
    assert parse_policy("tova").head_budgets(heads, NONE) == [20, 21]


@pytest.mark.parametrize("spec", ["tova", "tova+caote", "tova+ada", "tova+ada+pyramid"])
def test_a_limit_below_the_budget_is_refused_by_every_policy(spec):
    arguments = needed("tova+caote", SMALL, budget=50)
    policy = parse_policy(spec)
    heads = [head_of(arguments, g, policy) for g in range(2)]
    assert sum(policy.head_budgets(heads, NONE, largest=50)) == 100
    with pytest.raises(ConfigError, match="largest=49 is less than the budget of 50"):
        policy.head_budgets(heads, NONE, largest=49)


def test_budgets_needs_a_policy():
    with pytest.raises(PolicyError, match="'nonsense' is unknown"):
        budgets("nonsense", budget=1, keys=np.ones((1, 1, 4)), positions=[[0]])
