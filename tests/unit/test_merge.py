"""The cells that `merge` keeps, and the reference of its means. tests/runtime/test_merged_cells.py has the cache."""

from __future__ import annotations

import numpy as np
import pytest
from policy_arrays import LARGE, SHAPES, SMALL, assert_same_cells, needed

from edgekv.errors import PolicyError
from edgekv.policies import parse_policy
from edgekv.policies.merge import group_cells, merged, new_means
from edgekv.scoring import score, select

SPECS = [
    "keydiff+merge",
    "keydiff(rope=off)+merge(cells=5)",
    "sink+merge(cells=1024)",
    "random+pyramid+merge",
    "snapkv(window=8)+critical+merge(cells=3)",
    "tova+caote(rounds=3)+merge",
    "h2o+critical(mass=0.5)+merge(cells=1)",
    "ahakv+fastcaote+critical+merge",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", [*SHAPES, LARGE], ids=str)
def test_native_keeps_what_the_reference_keeps(spec, shape):
    arguments = needed(spec, shape, n_sink=min(4, shape.n // 8), recent=shape.n // 10)
    native, reference = (select(spec, **arguments, backend=backend) for backend in ("native", "reference"))
    scores = score(spec, **{k: v for k, v in arguments.items() if k not in ("n_sink", "recent")}, backend="reference")
    for found, expected, own in zip(native, reference, scores, strict=True):
        if spec.startswith("tova+caote"):  # the order in which rounds rank is compared in test_policies.py
            assert len(found) == len(expected)
        else:
            assert_same_cells(found, expected, own)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_means_are_evenly_over_what_goes(backend):
    """An eighth of the free cells at most, whatever is asked for; the others are those of the wrapped policy."""
    arguments = needed("keydiff", SMALL, budget=60, recent=16)
    for spec, n_new in (("keydiff+merge(cells=3)", 3), ("keydiff+merge(cells=500)", 5)):
        for kept, position in zip(select(spec, **arguments, backend=backend), arguments["positions"], strict=True):
            whole = select("keydiff", **arguments | {"budget": 60 - n_new}, backend=backend)
            alone = next(cells for cells in whole if np.isin(cells, kept).all())
            gone = np.setdiff1d(np.arange(SMALL.n), alone)
            gone = gone[np.argsort(position[gone])]
            expected = gone[[(2 * i + 1) * len(gone) // (2 * n_new) for i in range(n_new)]]
            assert set(kept) == {*alone, *expected}
            assert len(kept) == 60


def test_cells_that_all_fit_become_no_means():
    arguments = needed("keydiff", SMALL, budget=SMALL.n)
    for backend in ("native", "reference"):
        assert [len(kept) for kept in select("keydiff+merge", **arguments, backend=backend)] == [SMALL.n] * SMALL.heads


def test_the_newest_means_stay_up_to_an_eighth():
    """Of a head whose budget has shrunk; the others compete by their scores."""
    from edgekv.policies.head import Head
    from edgekv.policies.selection import Protection

    rng = np.random.default_rng(0)
    keys, positions = rng.standard_normal((50, 8)), np.arange(50)
    counts = np.where(np.isin(positions, [10, 11, 30]), 7.0, 1.0)
    head = Head(keys=keys, positions=positions, counts=counts, budget=20)
    policy, protected = parse_policy("sink(n_sink=0)+merge(cells=4)"), {0, 1, 46, 47, 48, 49}  # the newest score best
    for budget, means in ((8, set()), (14, {30}), (20, {30}), (22, {30, 11})):
        kept = set(policy.keep(head, Protection(2, 4), budget).tolist())
        rest = [cell for cell in range(45, 1, -1) if cell not in means]
        assert kept == protected | means | set(rest[: budget - len(protected) - len(means)])
    assert {10, 11, 30} <= set(policy.keep(head, Protection(2, 4), 46).tolist())  # by score, too


def test_groups_are_those_of_the_nearest_keys():
    rng = np.random.default_rng(1)
    centers = 10 * np.eye(4)
    gone = centers[[0, 1, 1, 3, 2, 3]] + rng.normal(0, 0.1, (6, 4))
    weights, counts = np.array([1.0, 1, 1, 1, 5, 1]), np.array([1.0, 2, 3, 1])
    groups = group_cells(gone, weights, centers, counts)
    assert groups.tolist() == [0, 1, 1, 3, 2, 3]
    rows = merged(centers, counts, gone, weights, groups)
    np.testing.assert_allclose(rows[2], (3 * centers[2] + 5 * gone[4]) / 8)
    np.testing.assert_allclose(rows[1], (2 * centers[1] + gone[1] + gone[2]) / 4)
    assert new_means(7, 0).tolist() == []


@pytest.mark.parametrize("spec", ["keydiff+merge+ada", "keydiff+merge+merge", "keydiff+merge+critical"])
def test_merge_comes_last(spec):
    with pytest.raises(PolicyError, match=r"goes over|stands twice"):
        parse_policy(spec)


@pytest.mark.parametrize("cells", ["0", "1025", "x"])
def test_the_number_of_means_is_checked(cells):
    with pytest.raises(PolicyError, match=rf"merge\(cells={cells}\)"):
        parse_policy(f"keydiff+merge(cells={cells})")
