"""Cells that each KV head of a model needs: measured over texts, for the policy wrapper `heads`."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import edgekv
from edgekv.generation.request import ProgressCallback
from edgekv.models.catalog import find_model
from edgekv.models.head_shares import HeadShares
from edgekv.models.header import read_header
from edgekv.models.sampled_digest import sampled_digest

from . import prose

POLICY = "replay+ada(scope=model, safeguard=0)"
SPARE_TOKENS = 16  # spare tokens: a passage that is cut out may have fewer
SMALL_WEIGHTS = 500_000_000  # 135 million want steeper tables, 1.5 billion flatter ones (docs/results/models.md)


class RuntimeTokenizer:
    """The tokeniser of a runtime, also of an isolated one."""

    def __init__(self, runtime: edgekv.Runtime) -> None:
        self._runtime = runtime

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self._runtime.tokenize(text)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""
        return self._runtime.pieces_of([token])[0]


def measure(
    model: str | os.PathLike[str] | None,
    texts: Sequence[Path] = (),
    *,
    n_passages: int = 2,
    n_tokens: int = 1024,
    budget: int | None = None,
    seed: int = 0,
    memory: int | str | None = "100%",
    threads: int | None = None,
    isolated: bool = False,
    told: Callable[[int], object] = lambda _: None,
    progress: ProgressCallback | None = None,
    **further: Any,
) -> HeadShares:
    """Read passages from random places of the texts in turn, and note how many cells `POLICY` leaves each head.

    texts: files of plain text; none = generated prose
    budget: cells of a head on average; None = a quarter of the tokens, or an eighth for a model of few weights
    memory, threads, isolated, further: as for `edgekv.Runtime`
    told(i) is called after passage i, and progress while it is read. The scores are those of KVzip (arXiv:2505.23416).

    Raises ConfigError and InputError for what cannot be read, CeilingError, and what `edgekv.Runtime` raises.
    """
    path = find_model(model)
    if budget is None:
        budget = max(1, n_tokens // (8 if read_header(path).n_weights < SMALL_WEIGHTS else 4))
    if n_tokens <= budget:
        raise edgekv.ConfigError(
            f"tokens={n_tokens} fit {budget} cells, so nothing is evicted; give more tokens than cells"
        )
    sources: list[str | None] = [prose.read_book(text) for text in texts]
    counts = []
    with edgekv.Runtime(
        path,
        memory=memory,
        policy=POLICY,
        budget=budget,
        focus=False,
        archive="off",
        reposition="never",
        threads=threads,
        isolated=isolated,
        swap_bytes=0,  # one session at a time
        **further,
    ) as runtime:
        tokenizer = RuntimeTokenizer(runtime)
        for i, source in zip(range(n_passages), itertools.cycle(sources or [None])):
            text = prose.passage(tokenizer, source, n_tokens + SPARE_TOKENS, random.Random(seed + i))
            with runtime.session(history=True, checkpoint_bytes=0) as session:
                session.prefill_prefix(prose.first_tokens(tokenizer, text, n_tokens), progress=progress)
                counts.append(session.budgets())
            told(i)
    layers = [np.mean(layer, axis=0).round(1).tolist() for layer in zip(*counts, strict=True)]
    return HeadShares(tuple(map(tuple, layers)), budget, POLICY, n_passages, n_tokens, sampled_digest(path))
