"""The tokens of a text, and the heads that kept them."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from edgekv.binding.model import Model
from edgekv.conversations.coverage import levels, with_archived
from edgekv.session import Session


@dataclass(frozen=True)
class Kept:
    """The tokens of a text, and the (layer, KV head)s that still hold each.

    pieces: the text of each token, (n,); if several tokens make one character, all but the last are empty
    heads: (layer, head), (H,) ascending
    mask: (H, n), True if a head holds a token
    archived: positions [begin, end) whose rows are archived
    """

    pieces: tuple[str, ...]
    heads: tuple[tuple[int, int], ...]
    mask: npt.NDArray[np.bool_]
    archived: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, session: Session, model: Model, tokens: Sequence[int], archived: tuple[int, int] = (0, 0)) -> Kept:
        """Return the tokens that a session keeps now. `tokens` are all tokens that it was fed."""
        heads = tuple((layer, head) for layer, budgets in enumerate(session.budgets()) for head in range(len(budgets)))
        mask = np.zeros((len(heads), len(tokens)), dtype=np.bool_)
        for row, (layer, head) in zip(mask, heads, strict=True):
            row[session.kept_positions(layer, head)] = True
        return cls(tuple(_pieces(model, tokens)), heads, mask, archived)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Number of heads that hold each token, (n,)."""
        return np.asarray(self.mask.sum(axis=0))

    @property
    def levels(self) -> npt.NDArray[np.int64]:
        """The shade of each token, (n,): 0 = no head holds it, by share of the heads up to 4, 5 = archived alone."""
        return with_archived(levels(self.counts / max(1, len(self.heads))), 0, self.archived)

    def row(self, layer: int, head: int) -> npt.NDArray[np.bool_]:
        """Return which tokens one head holds, (n,)."""
        return np.asarray(self.mask[self.heads.index((layer, head))])

    def by_layer(self) -> list[list[int]]:
        """Return the number of tokens that each head holds, layer by layer."""
        pairs = zip(self.heads, self.mask.sum(axis=1).tolist(), strict=True)
        return [[n for _, n in layer] for _, layer in groupby(pairs, key=lambda pair: pair[0][0])]


def runs(row: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the ranges [p0, p1) of positions that are set in a row."""
    edges = np.flatnonzero(np.diff(np.pad(row, 1).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _pieces(model: Model, tokens: Sequence[int]) -> Iterator[str]:
    """Yield each token's text; control tokens by their names. The last token gets the rest of a cut character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for i, token in enumerate(tokens):
        yield decoder.decode(model.piece(token, special=True), final=i == len(tokens) - 1)
