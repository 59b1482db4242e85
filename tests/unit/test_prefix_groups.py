"""Texts that begin alike are put together so that few blocks are read."""

from __future__ import annotations

import itertools
import random

import pytest

from edgekv.batch.prefix_groups import PrefixGroup, block_hashes, group_by_prefix

BLOCK = 4


def chains(texts):
    return [block_hashes(text, BLOCK)[0] for text in texts]


def common(texts):
    """Whole blocks that all of these have in common, without their last tokens."""
    shortest = min(map(len, texts))
    n = sum(1 for _ in itertools.takewhile(lambda at: len(set(at)) == 1, zip(*texts, strict=False)))
    return min(n, shortest - 1) // BLOCK


def n_read(texts, groups):
    """Blocks that are read, of those that may be shared."""
    whole = sum((len(text) - 1) // BLOCK for text in texts)
    return whole - sum((len(group) - 1) * n for group, n in groups)


@pytest.mark.parametrize("seed", range(60))
def test_groups_have_their_blocks_in_common_and_no_single_one_saves_more(seed):
    rng = random.Random(seed)
    texts = [[]]
    while len(texts) < 7:  # each goes on from the middle of an earlier one
        earlier = rng.choice(texts)
        texts.append(earlier[: rng.randint(0, len(earlier))] + [rng.randint(0, 2) for _ in range(rng.randint(1, 20))])
    texts = texts[1:]
    groups = group_by_prefix(chains(texts))
    assert sorted(itertools.chain(*(group.members for group in groups))) == list(range(len(texts)))
    for members, n_blocks in groups:
        assert n_blocks == (common([texts[i] for i in members]) if len(members) > 1 else 0)
        assert len(members) == 1 or n_blocks > 0
    some = (set(found) for n in range(2, 7) for found in itertools.combinations(range(6), n))
    assert n_read(texts, groups) <= min(n_read(texts, [(one, common([texts[i] for i in one]))]) for one in some)


def test_the_order_of_texts_does_not_matter():
    rng = random.Random(5)
    texts = [[i // 3] * 9 + [rng.randint(0, 9) for _ in range(6)] for i in range(12)]
    order = list(range(12))
    rng.shuffle(order)
    shuffled = group_by_prefix(chains([texts[i] for i in order]))
    found = sorted(PrefixGroup(tuple(sorted(order[i] for i in members)), n) for members, n in shuffled)
    assert found == group_by_prefix(chains(texts)) == [PrefixGroup((3 * i, 3 * i + 1, 3 * i + 2), 2) for i in range(4)]


def test_documents_come_before_what_all_begin_with():
    system = [1] * 8
    texts = [system + [doc] * 40 + [question] for doc in (2, 3) for question in (4, 5, 6)]
    alone = [[*system, i, i, i, i, i] for i in (7, 8)]
    assert group_by_prefix(chains(texts + alone[:1])) == [
        PrefixGroup((0, 1, 2), 12),
        PrefixGroup((3, 4, 5), 12),
        PrefixGroup((6,), 0),
    ]
    assert group_by_prefix(chains(texts + alone)) == [
        PrefixGroup((0, 1, 2), 12),
        PrefixGroup((3, 4, 5), 12),
        PrefixGroup((6, 7), 2),
    ]


def test_equal_texts_keep_a_token_to_read():
    assert group_by_prefix(chains([[1] * 8, [1] * 8])) == [PrefixGroup((0, 1), 1)]
    assert group_by_prefix(chains([[1] * 9, [1] * 9])) == [PrefixGroup((0, 1), 2)]


def test_a_long_line_of_texts_that_go_on_from_each_other():
    texts = [[1] * (BLOCK * i + 1) for i in range(1200)]
    groups = group_by_prefix(chains(texts))
    assert sum(len(group.members) for group in groups) == 1200


def test_kinds_have_nothing_in_common():
    one, other = (block_hashes([1] * 20, BLOCK, kind)[0] for kind in (b"chat", b"text"))
    assert group_by_prefix([one, other]) == [PrefixGroup((0,), 0), PrefixGroup((1,), 0)]
    assert group_by_prefix([one, one]) == [PrefixGroup((0, 1), 4)]
