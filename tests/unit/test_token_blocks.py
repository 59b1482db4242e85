"""Tokens in blocks, and those at the end of a prompt that are held back."""

from __future__ import annotations

import pytest

from edgekv.cells.token_blocks import HeldBack, blocks, with_last


@pytest.mark.parametrize(("n", "held"), [(0, 0), (0, 3), (2, 3), (3, 3), (4, 3), (9, 0), (9, 3)])
def test_the_last_tokens_are_held_back(n, held):
    tokens = HeldBack(iter(range(n)), held)
    first = max(0, n - held)
    assert list(tokens) == list(range(first))
    assert list(tokens.tokens) == list(range(first, n))


def test_no_more_tokens_are_taken_than_are_held_back():
    """So that what follows a prompt's end is noted in time, and memory does not grow with the text."""
    taken = []
    tokens = iter(HeldBack((taken.append(i) or i for i in range(100)), 3))
    assert [next(tokens), len(taken)] == [0, 4]
    assert [next(tokens), len(taken)] == [1, 5]


@pytest.mark.parametrize(
    ("n", "marked"),
    [(0, []), (2, [([0, 1], True)]), (3, [([0, 1], False), ([2], True)]), (4, [([0, 1], False), ([2, 3], True)])],
)
def test_the_last_block_is_marked(n, marked):
    assert list(with_last(blocks(range(n), 2))) == marked
