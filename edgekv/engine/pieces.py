"""Pieces of a reply that know their tokens, and how probable the model held these to be."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgekv.binding.model import Model


class Chance(NamedTuple):
    """A token that could have come, its bytes, or the name of a control token, and its log probability (natural)."""

    id: int
    piece: bytes
    logprob: float


class Token(NamedTuple):
    """A token of a reply, as `Chance`; `top` has the most probable ones in its place, the first one first.

    The probabilities are the model's own: before penalties, temperature, and what a grammar forbids. So `top` need not
    hold the token.
    """

    id: int
    piece: bytes
    logprob: float
    top: tuple[Chance, ...]


class Piece(str):
    """A piece of a reply, which is a text, with the tokens that begin in it."""

    __slots__ = ("tokens",)
    tokens: tuple[Token, ...]

    def __new__(cls, text: str, tokens: Iterable[Token] = ()) -> Piece:
        piece = super().__new__(cls, text)
        piece.tokens = tuple(tokens)
        return piece

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.tokens)


class Chances:
    """What the model held probable after some tokens: kept before the logits are changed.

    logits: (n_vocab,) float32
    n_top: how many of the most probable tokens to keep
    """

    def __init__(self, logits: npt.NDArray[np.float32], n_top: int) -> None:
        wide = logits.astype(np.float64)
        wide -= wide.max()
        self._log_probabilities = wide - np.log(np.exp(wide).sum())
        best = np.argpartition(wide, -n_top)[-n_top:] if n_top else np.empty(0, np.int64)
        self._top: list[int] = best[np.argsort(-wide[best], kind="stable")].tolist()

    def of(self, token: int, model: Model) -> Token:
        """The token that came, with its alternatives."""
        top = tuple(Chance(other, model.piece(other, special=True), self._of(other)) for other in self._top)
        return Token(token, model.piece(token), self._of(token), top)

    def _of(self, token: int) -> float:
        return float(self._log_probabilities[token])


class Noted:
    """The tokens of a reply on their way to its pieces. n_top: alternatives that are noted with each"""

    def __init__(self, n_top: int = 0) -> None:
        self._n_top = n_top
        self._tokens: deque[tuple[int, Token]] = deque()  # with the characters of the reply before each
        self._n_said = self._n_given = 0  # characters

    def chances(self, logits: npt.NDArray[np.float32]) -> Chances:
        """What the model holds probable now; logits (n_vocab,)."""
        return Chances(logits, self._n_top)

    def add(self, token: Token) -> None:
        """Note a token that is said now."""
        self._tokens.append((self._n_said, token))

    def follow(self, texts: Iterable[str]) -> Iterator[str]:
        """The texts of tokens as they come, unchanged."""
        for text in texts:
            self._n_said += len(text)
            yield text

    def pieces(self, texts: Iterable[str]) -> Iterator[Piece]:
        """The texts that are given out, each with the tokens that begin in it.

        A token that gives no text of its own goes with the next one that does.
        """
        for text in texts:
            self._n_given += len(text)
            tokens = []
            while self._tokens and self._tokens[0][0] < self._n_given:
                tokens.append(self._tokens.popleft()[1])
            yield Piece(text, tokens)
