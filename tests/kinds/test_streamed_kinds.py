"""Models of every family whose weights are read whenever their turn comes: the same cells and replies, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from diagonals import by_night, diagonal
from evicting import OF_EACH_KIND, RUN

import edgekv

OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "probe_tokens": 16, "repack": False}
TEXT = "the old house by the river stood empty since the flood of that year " * 8


def outcome(path, **options):
    """Return the plan, the bytes read, a reply with its log probabilities, and the cells after it."""
    with edgekv.Runtime(path, **OPTIONS | options) as rt, rt.session() as session:
        session.read(TEXT)
        said = [(piece, piece.packed) for piece in session.chat("Who lived there?", max_tokens=7, logprobs=3)]
        snapshot = rt.block_loop.cache.snapshot().data
        return rt.plan, rt.model.streaming().read_bytes, said, snapshot


SHARES = (0, 0.5)
ALL = [(name, share) for name in RUN for share in SHARES]


@pytest.mark.parametrize(
    ("name", "resident"), by_night(ALL, [case for case in diagonal(RUN, SHARES) if case[0] in OF_EACH_KIND[::2]])
)
def test_a_family_computes_the_same(family_model, name, resident):
    """A family says which matrices its layers have, and the share how many layers are read: no pair is another case."""
    path = family_model(name)
    threads = 2 if name == "gpt-oss" else 1  # one reads the experts that are chosen while others wait for them
    _, nothing, said, expected = outcome(path, threads=threads)
    assert not nothing
    plan, read, found, snapshot = outcome(path, threads=threads, resident=resident)
    assert plan.n_streamed == plan.n_layers - round(resident * plan.n_layers)
    assert read >= plan.streamed_bytes > 0
    assert found == said
    assert np.array_equal(snapshot, expected)
