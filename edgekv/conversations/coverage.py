"""The coverage of a text: the number of heads that hold each token, and the text in shades of that number."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

N_LEVELS = 4  # shades of kept text; forgotten text has one of its own
ARCHIVED = N_LEVELS + 1  # the shade of text that no head holds, and that a recall can bring back


def levels(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the shades of shares in [0, 1]: 0 for no head, and up to N_LEVELS for all heads."""
    return np.ceil(shares * N_LEVELS).astype(np.int64)


def with_archived(shades: npt.NDArray[np.int64], start: int, archived: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return the shades of the tokens from position `start` on, with ARCHIVED for those that no head holds.

    archived: positions [begin, end) whose rows are archived
    """
    positions = np.arange(start, start + len(shades))
    return np.where((shades == 0) & (positions >= archived[0]) & (positions < archived[1]), ARCHIVED, shades)


class Shaded(NamedTuple):
    """The text of consecutive tokens of one shade.

    shade: 0 = no head holds them; up to 4, each a quarter of the heads; 5 = no head does, but their rows are archived
    """

    text: str
    shade: int


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """The number of (layer, KV head)s that hold each token. Its memory grows with the cells, not with the text.

    n_heads: number of heads
    positions: true positions of the tokens that any head holds, (n,) ascending
    counts: number of heads that hold each of them, (n,)
    archived: positions [begin, end) whose rows are archived
    """

    n_heads: int
    positions: npt.NDArray[np.int32]
    counts: npt.NDArray[np.intp]
    archived: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, held: Iterable[npt.NDArray[np.int32]], archived: tuple[int, int] = (0, 0)) -> Coverage:
        """Return the coverage of heads. held: positions of the tokens that each head holds, taken one by one"""
        found = cls(0, np.empty(0, np.int32), np.empty(0, np.intp), archived)
        for positions in held:
            found = found._with(positions)
        return found

    def _with(self, held: npt.NDArray[np.int32]) -> Coverage:
        """Return this coverage with one more head."""
        positions, which = np.unique(np.concatenate([self.positions, held]), return_inverse=True)
        counts = np.bincount(which[len(self.positions) :], minlength=len(positions))
        counts[which[: len(self.positions)]] += self.counts
        return Coverage(self.n_heads + 1, positions, counts, self.archived)

    def levels(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the shades of the tokens in [start, stop), (n,)."""
        counts = np.zeros(stop - start)
        first, last = np.searchsorted(self.positions, (start, stop))
        counts[self.positions[first:last] - start] = self.counts[first:last]
        return with_archived(levels(counts / max(1, self.n_heads)), start, self.archived)

    def shaded(self, blocks: Iterable[Sequence[bytes]], start: int) -> Iterator[Shaded]:
        """Yield the text of tokens from position `start` on, in runs of one shade. blocks: bytes of tokens, by block

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
