"""Specs, arrays and tolerances that the tests of the policies share."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from diagonals import diagonal

from edgekv import PolicyError
from edgekv.policies import POLICIES, WRAPPERS, parse_policy
from edgekv.policies.keydiff import ANCHORS, METRICS

BACKENDS = ("native", "reference")
POOLINGS = ("kernel=1", "kernel=15", "kernel=15, pool=max")
KEYDIFFS = [
    f"keydiff(anchor={anchor}, metric={metric}, {pooling})"
    for anchor in ANCHORS
    for metric in METRICS
    if anchor != "pairwise" or metric == "cosine"
    for pooling in POOLINGS
]
VARIANTS = [
    *(f"{base}({pooling})" for base in ("random", "l2norm") for pooling in POOLINGS[1:]),
    "keydiff(rope=off)",
    "snapkv(window=1)",
    "snapkv(kernel=1)",
    "snapkv(pool=max)",
    "snapkv(window=8, kernel=15, pool=max)",
    "snapkv(pool=max, pool_rows=on)",
    "snapkv(aggregate=max)",
    "snapkv(window=5, pool_rows=on, aggregate=max)",
    "ahakv(r=3)",
    "ahakv(kernel=1)",
    "ahakv(floor=off)",
    "ahakv(recent_accumulation=off)",
    "ahakv(step_gain=off)",
    "ahakv(value_prior=off)",
    "ahakv(r=3, protect_recent=on)",
    "ahakv(recent_accumulation=off, step_gain=off, value_prior=off)",
    "snapkv(pool=max)+critical(alpha=0.25)",
    "tova+critical(alpha=0)",
    "h2o+critical(alpha=1)",
    "snapkv+critical(epsilon=0)",
    "tova+critical(epsilon=0.1)",
    "keydiff(anchor=pairwise, kernel=15)+fastcaote",
    "ahakv(value_prior=off)+caote+critical(alpha=0.75)",
]


SHARED = [  # specs whose heads may keep different numbers of cells
    *(f"{base}+ada" for base in ("h2o", "tova", "snapkv", "ahakv", "keydiff", "l2norm")),
    "tova+caote+ada",
    "ahakv+fastcaote+ada(safeguard=0)",
    "ahakv(floor=off)+caote+ada",
    "snapkv+critical+ada",
    "snapkv(pool=max, pool_rows=on)+ada",
    "snapkv(aggregate=max)+critical(epsilon=0.1)+ada",
    "ahakv+critical+ada",
    "keydiff+pyramid+ada",
    "l2norm+critical+ada(safeguard=1)+pyramid",
]


def legal_combinations():
    """Every base alone, and with one or two wrappers that score or choose, where they go together."""
    wrapping = [name for name in WRAPPERS if name not in ("ada", "pyramid")]
    for base in POLICIES:
        for n_wrappers in range(3):
            for wrappers in itertools.product(wrapping, repeat=n_wrappers):
                spec = "+".join((base, *wrappers))
                try:
                    parse_policy(spec)
                except PolicyError:
                    continue
                yield spec


COMBINATIONS = list(legal_combinations())
ONE_RANKING = list(dict.fromkeys([*COMBINATIONS, *KEYDIFFS, *VARIANTS]))  # specs that rank once, or in two stages
EQUAL = [*ONE_RANKING, "random+pyramid"]  # specs whose heads all keep as many
SPECS = [*EQUAL, *SHARED]


def beside(specs, others, n=1):
    """Pairs of each spec with n of the others, and of each bare base with all.

    Formulas branch on what a policy does, and rows on how they lie; none branches on the pair, so a full product would
    go many times through one branch.
    """
    return diagonal(specs, others, n, whole=POLICIES)


def named(value):
    """The id of a parameter."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def one_for_each_set_of_arrays():
    """Specs that differ in the arrays that they read, by which arguments are taken over."""
    found = {}
    for spec in SPECS:
        policy = parse_policy(spec)
        found.setdefault(frozenset(names_read(policy) | policy.reads), spec)
    return list(found.values())


@dataclass(frozen=True)
class Shape:
    d: int
    d_v: int
    n: int
    heads: int
    group: int
    rows: int
    softcap: float = 0.0
    scale: float | None = None
    has_sinks: bool = False

    def __str__(self):
        return f"{self.d}x{self.n}x{self.heads}x{self.group}"


TINY = Shape(d=32, d_v=32, n=1, heads=1, group=1, rows=3)
SMALL = Shape(d=64, d_v=48, n=200, heads=2, group=2, rows=24)
SHAPES = [
    TINY,
    Shape(d=33, d_v=17, n=50, heads=1, group=3, rows=5),
    Shape(d=64, d_v=64, n=2, heads=8, group=1, rows=2),
    Shape(d=96, d_v=40, n=127, heads=3, group=2, rows=40, softcap=5.0),
    Shape(d=128, d_v=32, n=1000, heads=2, group=4, rows=33, scale=0.05, has_sinks=True),
    Shape(d=256, d_v=64, n=600, heads=1, group=8, rows=32),
]
LARGE = Shape(d=64, d_v=128, n=5000, heads=1, group=4, rows=128)


@functools.cache
def all_arrays(shape, dtype="float32"):
    """Everything that any policy reads, read-only.

    Keys share a direction, as a model's do. All heads hold the newest rows' tokens; their older positions have gaps,
    and cells lie in no order.
    """
    rng = np.random.default_rng((shape.d, shape.n, shape.heads))
    n, heads = shape.n, shape.heads
    last = 4 * n + 8
    fed = min(n, shape.rows)
    newest = np.arange(last - fed + 1, last + 1)
    older = [rng.choice(last - fed + 1, n - fed, replace=False) for _ in range(heads)]
    arrays = {
        "keys": rng.standard_normal((heads, n, shape.d)) + 2 * rng.standard_normal((heads, 1, shape.d)),
        "positions": np.array([rng.permutation([*old, *newest]) for old in older], dtype=np.int32),
        "values": rng.standard_normal((heads, n, shape.d_v)) * rng.uniform(0.2, 3, (heads, n, 1)),
        "queries": rng.standard_normal((heads * shape.group, shape.rows, shape.d)),
        "accumulated": rng.exponential(size=(heads, n)),
        "w_o": rng.standard_normal((heads * shape.group, shape.d_v, 24)),
    }
    if shape.has_sinks:
        arrays["sinks"] = rng.normal(5, 1, heads * shape.group)
    types = {"keys": dtype, "values": dtype, "positions": np.int32}
    arrays = {name: array.astype(types.get(name, np.float32)) for name, array in arrays.items()}
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def names_read(policy):
    """The arrays that a policy reads, keys included where they matter."""
    reads = {"queries", "values"} & policy.reads
    reads |= {"values", "w_o"} if "wo_norm" in policy.reads else set()
    reads |= {"accumulated"} if policy.base.name in ("h2o", "ahakv") else set()
    return reads | (set() if policy.base.name in ("sink", "random") else {"keys"})


BY_ARRAYS = one_for_each_set_of_arrays()


def needed(spec, shape, dtype="float32", **others):
    """Arguments of `score`: the arrays that the policy reads and no others, the budget, and the shape's attention."""
    arrays = all_arrays(shape, dtype)
    names = names_read(parse_policy(spec)) | {"keys", "positions"}
    names |= {"sinks"} if "queries" in names else set()
    arguments = {name: array for name, array in arrays.items() if name in names}
    return arguments | {"budget": budget_of(spec, shape), "scale": shape.scale, "softcap": shape.softcap} | others


def budget_of(spec, shape):
    """A third of the cells, or as many as hold the protected ones and a few more."""
    protected = parse_policy(spec).recent(shape.n // 3) + min(4, shape.n // 8) + shape.n // 10
    return max(1, shape.n // 3, min(shape.n, protected + 3))


# ---- how close the native version is ----

# float32 sums over a few thousand rows agree with float64 ones to this share of a head's largest score, not 1e-3
ROUNDING = 4e-6


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max(initial=0))


def assert_same_cells(found, expected, scores):
    """Check that the same cells stay, but for cells at the threshold.

    A cell may stand for another where the reference scores of all exchanged cells lie within float32 rounding of one
    another: no other exchange is possible when the native scores are right to that rounding.
    """
    assert len(found) == len(expected)
    exchanged = np.setxor1d(found, expected)
    if len(exchanged):
        assert np.ptp(scores[exchanged]) <= 2 * ROUNDING * np.abs(scores).max()
