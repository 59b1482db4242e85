"""Which requests begin alike, so that what they have in common is read once.

A text is cut into blocks of tokens, as it is decoded. Each block has a digest of itself and of all blocks before it, so
texts that have a digest in common begin alike. A beginning ends between two blocks: whoever reads it, and then the
rest, decodes the same blocks as whoever reads all at once.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from edgekv.engine.controller import blocks

HASH_BYTES = 8  # of a block


def block_hashes(tokens: Iterable[int], block: int, kind: bytes = b"") -> tuple[bytes, int]:
    """The digests of a text's whole blocks, but not of its last token; and how many tokens it has.

    The last token is left out because whoever answers a text reads at least that.

    kind: texts of different kinds have nothing in common
    """
    hashes, n_tokens, digest = [], 0, kind
    newest: list[int] = []
    for part in blocks(tokens, block):
        if newest:
            digest = hashlib.blake2b(digest + array("i", newest).tobytes(), digest_size=HASH_BYTES).digest()
            hashes.append(digest)
        newest = part
        n_tokens += len(part)
    return b"".join(hashes), n_tokens


class PrefixGroup(NamedTuple):
    """Texts, by their numbers in ascending order, that have their first n_blocks blocks in common."""

    members: tuple[int, ...]
    n_blocks: int


def group_by_prefix(chains: Sequence[bytes]) -> list[PrefixGroup]:
    """Texts put together so that few blocks are read; in the order of their first members.

    A group of n texts saves its common blocks n - 1 times. In each branch of the tree of beginnings, the texts that are
    still alone are put together, or all texts of the branch, where that saves more. A text that saves nothing is a
    group of its own, with 0 blocks. The groups depend on the texts alone, and not on their order.
    """
    order = sorted(range(len(chains)), key=lambda number: (chains[number], number))
    branches = [_Branch(0)]
    for i, number in enumerate(order):
        n_common = _n_common(chains[number], chains[order[i + 1]]) if i + 1 < len(order) else 0
        if branches[-1].n_blocks < n_common:
            branches.append(_Branch(n_common))
        branches[-1].alone.append(number)
        while branches[-1].n_blocks > n_common:
            ended = branches.pop()
            if branches[-1].n_blocks < n_common:
                branches.append(_Branch(n_common))
            branches[-1].take(ended)
    (root,) = branches
    return sorted([*root.groups, *(PrefixGroup((number,), 0) for number in root.alone)])


class _Branch:
    """Texts that have n_blocks in common: some in groups that have more, the others still alone."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self.alone: list[int] = []
        self.groups: list[PrefixGroup] = []

    def take(self, branch: _Branch) -> None:
        """Add a branch of this one, as it is divided best."""
        n = branch.n_blocks
        divided = list(branch.groups)
        if len(branch.alone) > 1:
            divided.append(PrefixGroup(tuple(sorted(branch.alone)), n))
        members = [*branch.alone, *(number for group in branch.groups for number in group.members)]
        if (len(members) - 1) * n >= sum((len(group.members) - 1) * group.n_blocks for group in divided):
            self.groups.append(PrefixGroup(tuple(sorted(members)), n))
        else:
            self.groups += divided
            self.alone += branch.alone if len(branch.alone) == 1 else []


def _n_common(one: bytes, other: bytes) -> int:
    """Blocks at the beginning that two chains have in common."""
    n = min(len(one), len(other)) // HASH_BYTES
    low, high = 0, n  # each digest stands for all blocks up to it, so equal ones come first
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * HASH_BYTES] == other[: middle * HASH_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
