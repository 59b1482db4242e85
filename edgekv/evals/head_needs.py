"""Cells that each KV head of a model needs: measured over texts, for the policy wrapper `heads`."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import edgekv
from edgekv.models.head_shares import HeadShares

from . import prose

POLICY = "replay+ada(scope=model, safeguard=0)"
SPARE_TOKENS = 16  # spare tokens: a passage that is cut out may have fewer


def measure(
    model: str | os.PathLike[str] | None,
    texts: Sequence[Path] = (),
    *,
    n_passages: int = 2,
    n_tokens: int = 1024,
    budget: int = 128,
    seed: int = 0,
    memory: int | str = "100%",
    threads: int | None = None,
    told: Callable[[int], object] = lambda _: None,
) -> HeadShares:
    """Read passages from random places of the texts in turn, and note how many cells `POLICY` leaves each head.

    texts: files of plain text; none = generated prose
    told(i) is called after passage i. The scores are those of KVzip (arXiv:2505.23416).

    Raises ConfigError and InputError for what cannot be read, CeilingError, and what `edgekv.Runtime` raises.
    """
    if n_tokens <= budget:
        raise edgekv.ConfigError(
            f"tokens={n_tokens} fit {budget} cells, so nothing is evicted; give more tokens than cells"
        )
    sources: list[str | None] = [prose.read_book(text) for text in texts]
    counts = []
    with edgekv.Runtime(
        model, memory=memory, policy=POLICY, budget=budget, focus=False, reposition="never", threads=threads
    ) as runtime:
        block_loop = runtime.block_loop
        for i, source in zip(range(n_passages), itertools.cycle(sources or [None])):
            text = prose.passage(runtime.model, source, n_tokens + SPARE_TOKENS, random.Random(seed + i))
            block_loop.clear()
            block_loop.read(prose.first_tokens(runtime.model, text, n_tokens), lambda _: True, want_logits=False)
            counts.append(block_loop.cache.budgets())
            told(i)
    layers = [np.mean(layer, axis=0).round(1).tolist() for layer in zip(*counts, strict=True)]
    return HeadShares(tuple(map(tuple, layers)), budget, POLICY, n_passages, n_tokens)
