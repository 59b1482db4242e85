"""Feeds a text token by token, without a session, and measures how likely each token was."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from edgekv.binding.model import Context, Model
from edgekv.cells.block_loop import BlockLoop
from edgekv.counting import counted
from edgekv.errors import InputError
from edgekv.prompt.text import Prompt


class Feedable(Protocol):
    """A runtime, or a full cache beside it, that tokens are fed to."""

    @property
    def model(self) -> Model: ...

    @property
    def context(self) -> Context: ...

    @property
    def block_loop(self) -> BlockLoop: ...


def prompt_tokens(model: Model, text: str, n: int | None = None) -> list[int]:
    """Return the model's first tokens and the first n tokens of a text; None = all. Raises InputError for fewer."""
    tokens = list(itertools.islice(Prompt(model, begin=True).content(text).tokens(), n))
    if not tokens or (n is not None and len(tokens) < n):
        raise InputError(f"the text has {counted(len(tokens), 'token')}, but {n or 1:,} are needed; give a longer one")
    return tokens


def begin(cells: Feedable, n_tokens: int) -> None:
    """Empty the cells, for a text of n_tokens. Raises InputError for one beyond what the runtime can read."""
    block_loop = cells.block_loop
    block_loop.clear()
    limit = block_loop.repositioning.limit
    if limit is not None and n_tokens > limit:
        raise InputError(
            f"{n_tokens} tokens are wanted, but the model was trained on {limit}, and "
            f"{block_loop.repositioning.obstacle}, or take fewer tokens"
        )
    block_loop.repositioning.expect(n_tokens)


def log_losses(cells: Feedable, given: Sequence[int], tokens: Sequence[int]) -> Iterator[float]:
    """Return -ln p of each of the tokens, which come after the given ones, with the cells as they are by then.

    All but the last of the given tokens, at least one, are read block by block. The others are fed one by one, which
    evicts as reading does: whenever the spare cells of a block are full. Raises InputError as `begin`.
    """
    begin(cells, len(given) + len(tokens))
    cells.block_loop.read(given[:-1], lambda _: True)
    cells.block_loop.step(given[-1])
    yield from next_losses(cells, tokens)


def next_losses(cells: Feedable, tokens: Sequence[int]) -> Iterator[float]:
    """-ln p of each of the tokens, which come next. All but the last are fed, one by one, as a reply is."""
    for i, token in enumerate(tokens):
        yield _log_loss(cells, token)
        if i + 1 < len(tokens):
            cells.block_loop.step(token)


def _log_loss(cells: Feedable, token: int) -> float:
    """-ln of the softmax of the last logits, in float64."""
    logits = np.ctypeslib.as_array(cells.context.logits(), (cells.model.n_vocab,)).astype(np.float64)
    most = logits.max()
    return float(most + np.log(np.exp(logits - most).sum()) - logits[token])
