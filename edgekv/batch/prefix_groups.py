"""Groups of texts with a common prefix, which is read once.

A text is cut into blocks of tokens, as it is decoded. Each block has a digest of itself and of all blocks before it. So
texts that have a digest in common have all blocks up to it in common. A prefix ends between two blocks. So the same
blocks are decoded whether a text is read at once, or its prefix first and then the rest.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from edgekv.cells.token_blocks import blocks

HASH_BYTES = 8  # bytes of a block's digest


def block_hashes(tokens: Iterable[int], block: int, kind: bytes = b"") -> tuple[bytes, int]:
    """Return the digests of a text's whole blocks without its last token, and the number of its tokens.

    The last token is left out because every request must read at least one token of its own.

    kind: texts of different kinds share no prefix
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
    """Numbers of texts, ascending, that have their first n_blocks blocks in common."""

    members: tuple[int, ...]
    n_blocks: int


def group_by_prefix(chains: Sequence[bytes]) -> list[PrefixGroup]:
    """Group texts so that few blocks are read. Groups are in the order of their first members.

    A group of n texts saves its common blocks n - 1 times. In each branch of the tree of prefixes, the texts that are
    still alone form a group, or all texts of the branch do if that saves more. A text that saves nothing is a group
    of its own, with 0 blocks. The groups depend on the texts alone, and not on their order.
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
        """Add a branch of this one, divided in the way that saves most."""
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
    """Return the number of first blocks that two chains of digests have in common."""
    n = min(len(one), len(other)) // HASH_BYTES
    low, high = 0, n  # each digest stands for all blocks up to it, so equal ones come first
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * HASH_BYTES] == other[: middle * HASH_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
