"""Pieces of a reply or a prompt with their tokens, and the log probabilities that the model gave these."""

from __future__ import annotations

import itertools
import math
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edgekv.binding.model import Model
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.loaded_model import LoadedModel

UNKNOWN = math.nan  # log probability of a token that nothing comes before
PART = 4096  # logits that are summed together

Packed: TypeAlias = bytes | bytearray  # tokens one after another, each as `packed` returns it


class TokenLogprob(NamedTuple):
    """A possible token, its bytes or the name of a control token, and its log probability (natural)."""

    id: int
    piece: bytes
    logprob: float


class Token(NamedTuple):
    """A token of a reply, as `TokenLogprob`; `top` has the most probable tokens of its place, best first.

    The probabilities are the model's own: before penalties, temperature, and what a grammar forbids. So `top` need not
    hold the token.
    """

    id: int
    piece: bytes
    logprob: float
    top: tuple[TokenLogprob, ...]


# head of a packed token or alternative: id, log probability, bytes of its piece, number of alternatives that follow
_HEAD = struct.Struct("<ifIB")
# bytes of a packed token or alternative with a piece of 19 bytes; pieces of a reply are shorter on average
PACKED_BYTES = 32


def packed(token: Token) -> bytes:
    """Return a token in few bytes, with log probabilities as float32, as logits are. Packed tokens can be joined."""
    return _packed(token, len(token.top)) + b"".join(_packed(other, 0) for other in token.top)


def _packed(it: Token | TokenLogprob, n_top: int) -> bytes:
    return _HEAD.pack(it.id, it.logprob, len(it.piece), n_top) + it.piece


def unpacked(data: Packed) -> Iterator[Token]:
    """Yield the tokens of packed bytes, one at a time."""
    logprobs = _unpacked(data)
    for logprob, n_top in logprobs:
        yield Token(*logprob, tuple(other for other, _ in itertools.islice(logprobs, n_top)))


def _unpacked(data: Packed) -> Iterator[tuple[TokenLogprob, int]]:
    at = 0
    while at < len(data):
        token, logprob, n_bytes, n_top = _HEAD.unpack_from(data, at)
        at += _HEAD.size + n_bytes
        yield TokenLogprob(token, bytes(data[at - n_bytes : at]), logprob), n_top


class Piece(str):
    """A piece of a reply: a text, with the tokens that begin in it.

    packed: these tokens, in a tenth of the memory
    """

    __slots__ = ("packed",)
    packed: bytes

    def __new__(cls, text: str, packed: bytes = b"") -> Piece:
        piece = super().__new__(cls, text)
        piece.packed = packed
        return piece

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens, unpacked anew at each call."""
        return tuple(unpacked(self.packed))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.packed)


class NextTokenLogprobs:
    """Log probabilities of the next token. Takes no memory of the vocabulary's size.

    logits: (n_vocab,) float32; before `of`, only logits of tokens that are not chosen may be changed
    n_top: how many of the most probable tokens to keep
    """

    def __init__(self, logits: npt.NDArray[np.float32], n_top: int) -> None:
        self._logits = logits
        parts = [logits[first : first + PART] for first in range(0, len(logits), PART)]
        most = float(logits.max())
        total = sum(float(np.exp(part.astype(np.float64) - most).sum()) for part in parts)
        self._log_total = most + math.log(total)
        best = [i * PART + _largest(part, n_top) for i, part in enumerate(parts)]
        found = np.concatenate(best)
        found = found[np.argsort(-logits[found], kind="stable")][:n_top]
        self._top = [(int(token), self._of(int(token))) for token in found]

    def of(self, token: int, piece: bytes, model: Model) -> Token:
        """Return the chosen token, of these bytes, with its alternatives."""
        top = tuple(TokenLogprob(other, model.piece(other, special=True), logprob) for other, logprob in self._top)
        return Token(token, piece, self._of(token), top)

    def _of(self, token: int) -> float:
        return float(self._logits[token]) - self._log_total


def _largest(values: npt.NDArray[np.float32], n: int) -> npt.NDArray[np.int64]:
    """Return the indices of the n largest values, or of all values, in no order."""
    if n == 0 or n >= len(values):
        return np.arange(len(values) if n else 0)
    return np.argpartition(values, -n)[-n:]


class LogprobRecorder:
    """Records the tokens of a reply until its pieces take them. n_top: alternatives to record with each token"""

    def __init__(self, n_top: int = 0) -> None:
        self._n_top = n_top
        self._tokens: deque[tuple[int, bytes]] = deque()  # (characters of the reply before it, packed token)
        self._n_said = self._n_given = 0  # characters

    def logprobs(self, logits: npt.NDArray[np.float32]) -> NextTokenLogprobs:
        """Return the log probabilities of the next token; logits (n_vocab,)."""
        return NextTokenLogprobs(logits, self._n_top)

    def add(self, token: Token) -> None:
        """Record a token that is generated now."""
        self._tokens.append((self._n_said, packed(token)))

    def follow(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the texts of tokens unchanged, and count their characters."""
        for text in texts:
            self._n_said += len(text)
            yield text

    def pieces(self, texts: Iterable[str]) -> Iterator[Piece]:
        """Yield the texts as pieces, each with the tokens that begin in it.

        A token without text of its own goes with the next token that has some.
        """
        for text in texts:
            self._n_given += len(text)
            tokens = []
            while self._tokens and self._tokens[0][0] < self._n_given:
                tokens.append(self._tokens.popleft()[1])
            yield Piece(text, b"".join(tokens))

    def rest(self) -> bytes:
        """Return the packed tokens after the last piece, which have no text of their own."""
        return b"".join(token for _, token in self._tokens)


class PromptLogprobs:
    """Notes the tokens of a prompt while it is read, which is token by token, as slowly as a reply is generated."""

    def __init__(self, engine: LoadedModel, block_loop: BlockLoop, n_top: int) -> None:
        self._engine = engine
        self._block_loop = block_loop
        self._recorder = LogprobRecorder(n_top)
        self._noted = bytearray()

    def note(self, token: int) -> None:
        """Note a token that is fed next. The first one has no log probability."""
        model, context = self._engine.model, self._engine.context
        piece = model.piece(token)
        if not self._noted:
            self._noted += packed(Token(token, piece, UNKNOWN, ()))
            return
        logits = context.logits_array(self._block_loop.logits_row)
        self._noted += packed(self._recorder.logprobs(logits).of(token, piece, model))

    def pieces(self) -> Iterator[Piece]:
        """Yield the text of the prompt in pieces, with its tokens. Those after the text go with the last piece."""

        def each() -> Iterator[int]:
            for token in unpacked(self._noted):
                self._recorder.add(token)
                yield token.id

        last = Piece("")
        for piece in self._recorder.pieces(self._recorder.follow(self._engine.model.text(each()))):
            if piece:
                yield last
                last = piece
        yield Piece(last, last.packed + self._recorder.rest())
