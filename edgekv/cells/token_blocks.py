"""Tokens in blocks, without those at the end that are held back."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator


class HeldBack:
    """Yields all tokens but the last n, which are in `tokens` afterwards."""

    def __init__(self, coming: Iterable[int], n: int) -> None:
        self.tokens: deque[int] = deque()
        self._coming = coming
        self._n = n

    def __iter__(self) -> Iterator[int]:
        for token in self._coming:
            self.tokens.append(token)
            if len(self.tokens) > self._n:
                yield self.tokens.popleft()


def blocks(tokens: Iterable[int], size: int) -> Iterator[list[int]]:
    """Cut tokens into lists of `size`, the last one shorter."""
    iterator = iter(tokens)
    while block := list(itertools.islice(iterator, size)):
        yield block


def with_last(coming: Iterable[list[int]]) -> Iterator[tuple[list[int], bool]]:
    """Yield each block, and whether it is the last one."""
    iterator = iter(coming)
    block = next(iterator, None)
    while block is not None:
        following = next(iterator, None)
        yield block, following is None
        block = following
