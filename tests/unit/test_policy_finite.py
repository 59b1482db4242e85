"""NaN and infinity in what a policy reads: an error for every policy, never a silent choice."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from diagonals import diagonal
from policy_arrays import BACKENDS, SMALL, SPECS, Shape, beside, names_read, needed

from edgekv import NativeError
from edgekv.policies import parse_policy
from edgekv.scoring import select


@pytest.mark.parametrize(("spec", "backend"), beside(SPECS, BACKENDS))
def test_arrays_that_are_not_finite_are_an_error(spec, backend):
    """One bad element of any array that the policy reads, of a cell that would stay as of one that would not."""
    arguments = needed(spec, SMALL)
    for name in names_read(parse_policy(spec)):
        for place, bad in itertools.product(bad_places(name, arguments), (np.nan, np.inf, -np.inf)):
            spoilt = arguments[name].copy()
            spoilt[place] = bad
            with pytest.raises(NativeError, match=r"score of position \d+ is not finite"):
                select(spec, **arguments | {name: spoilt}, backend=backend)


def bad_places(name, arguments):
    """Elements of the first head: of any cell, of a protected one; of the newest row, which every policy reads."""
    if name == "queries":
        return [(1, -1, 5)]
    if name == "w_o":
        return [(1, 5, 7)]
    cells = (17, int(np.argmax(arguments["positions"][0])))
    return [(0, cell) if name == "accumulated" else (0, cell, 5) for cell in cells]


WAYS = list(itertools.product(["keys", "queries"], [1, -1], [0.0, 20.0], BACKENDS))
SCORED = ["tova", "h2o", "snapkv", "ahakv", "snapkv+caote", "h2o+critical"]


@pytest.mark.parametrize(("spec", "way"), diagonal(SCORED, WAYS, n=2, whole=["tova"]), ids=str)
def test_infinite_logits_are_an_error(spec, way):
    """A softmax makes 0 of -inf and a soft-cap a number of either: neither may pass for attention."""
    name, sign, softcap, backend = way
    shape = Shape(d=32, d_v=32, n=80, heads=1, group=1, rows=4)
    arguments = needed(spec, shape, softcap=softcap)
    places = {"keys": (0, 17), "queries": (0, -1)}
    both = {key: np.abs(arguments[key]) for key in places}
    both[name][places[name]] = sign * np.inf
    with pytest.raises(NativeError, match=r"score of position \d+ is not finite"):
        select(spec, **arguments | both, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["sink", "random(kernel=7)"])
def test_policies_that_read_no_keys_do_not_mind_them(spec, backend):
    positions = np.arange(10)[None]
    (kept,) = select(spec, keys=np.full((1, 10, 32), np.nan), positions=positions, budget=5, backend=backend)
    assert len(kept) == 5
