"""How much of a text heads still hold: how many hold each token, and the text in shades of that."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

N_LEVELS = 4  # shades of what is kept, beside the one of what is not


def levels(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The shades of shares in [0, 1]: 0 for none, and up to N_LEVELS for all."""
    return np.ceil(shares * N_LEVELS).astype(np.int64)


class Shaded(NamedTuple):
    """The text of tokens in a row that about as many heads hold.

    shade: 0 = no head holds them; up to 4, each a quarter of the heads
    """

    text: str
    shade: int


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """How many (layer, KV head)s hold each token. It takes memory by the cells, not by the text.

    n_heads: that could hold it
    positions: of the tokens that any head holds, (n,) ascending; counts: how many do, (n,)
    """

    n_heads: int
    positions: npt.NDArray[np.int32]
    counts: npt.NDArray[np.intp]

    @classmethod
    def of(cls, held: Iterable[npt.NDArray[np.int32]]) -> Coverage:
        """held: the positions that each head holds, which are looked at one by one"""
        found = cls(0, np.empty(0, np.int32), np.empty(0, np.intp))
        for positions in held:
            found = found._with(positions)
        return found

    def _with(self, held: npt.NDArray[np.int32]) -> Coverage:
        """These, and one head more."""
        positions, which = np.unique(np.concatenate([self.positions, held]), return_inverse=True)
        counts = np.bincount(which[len(self.positions) :], minlength=len(positions))
        counts[which[: len(self.positions)]] += self.counts
        return Coverage(self.n_heads + 1, positions, counts)

    def levels(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The shades of the tokens in [start, stop), (n,)."""
        counts = np.zeros(stop - start)
        first, last = np.searchsorted(self.positions, (start, stop))
        counts[self.positions[first:last] - start] = self.counts[first:last]
        return levels(counts / max(1, self.n_heads))

    def shaded(self, blocks: Iterable[Sequence[bytes]], start: int) -> Iterator[Shaded]:
        """The text of tokens from position `start` on, in runs of one shade. blocks: their bytes, some at a time

        A run ends with its block. A character of several tokens has the shade of the last one.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        shade = 0
        for pieces in blocks:
            shades = self.levels(start, start + len(pieces)).tolist()
            start += len(pieces)
            for shade, run in groupby(zip(pieces, shades, strict=True), key=itemgetter(1)):
                text = decoder.decode(b"".join(piece for piece, _ in run))
                if text:
                    yield Shaded(text, shade)
        rest = decoder.decode(b"", final=True)
        if rest:
            yield Shaded(rest, shade)
