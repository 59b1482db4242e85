"""The number of heads that hold each token, and the text in shades of it."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.conversations.coverage import N_LEVELS, Coverage, levels


def test_levels_are_quarters_and_only_none_is_0():
    shares = np.array([0, 1e-9, 0.25, 0.26, 0.5, 0.75, 0.76, 1])
    assert levels(shares).tolist() == [0, 1, 1, 2, 2, 3, 4, 4]
    assert levels(np.arange(91) / 90).max() == N_LEVELS


@pytest.mark.parametrize(("start", "stop"), [(0, 200), (37, 121), (5, 5), (190, 200)])
def test_shades_of_a_range_are_those_of_each_tokens_heads(start, stop):
    masks = np.random.default_rng(3).random((7, 200)) < np.linspace(0, 1, 7)[:, None]
    coverage = Coverage.of([np.flatnonzero(mask).astype(np.int32) for mask in masks])
    assert coverage.levels(start, stop).tolist() == levels(masks.mean(axis=0))[start:stop].tolist()


@pytest.mark.parametrize("held", [[], [[]], [[], []]], ids=["no heads", "an empty head", "two empty heads"])
def test_where_nothing_is_held_everything_is_0(held):
    coverage = Coverage.of([np.array(positions, np.int32) for positions in held])
    assert list(coverage.shaded([[b"a", b" b"]], 0)) == [("a b", 0)]


def test_runs_are_cut_by_shade_and_by_block_and_characters_are_whole():
    coverage = Coverage.of([np.array([10, 11, 13, 14], np.int32), np.array([13], np.int32)])
    smile = "\N{SLIGHTLY SMILING FACE}".encode()
    blocks = [[b"a", b"b", b"c"], [smile[:2], smile[2:], b"d"], [smile[:1]]]
    runs = list(coverage.shaded(blocks, 10))
    assert runs == [
        ("ab", 2),
        ("c", 0),
        ("\N{SLIGHTLY SMILING FACE}", 2),  # its first token is kept by both heads, its last one by one of them
        ("d", 0),
        ("\N{REPLACEMENT CHARACTER}", 0),
    ]
