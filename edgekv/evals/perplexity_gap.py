"""Perplexity of a text whose tokens are evicted while it goes by, and its gap to the full cache (CAOTE, Table 4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import edgekv
from edgekv.counting import counted
from edgekv.errors import ConfigError

from .tokens import log_losses

SEGMENT = 32  # predictions whose losses a result holds as one sum

Result = Mapping[str, Any]


def perplexity(runtime: edgekv.Runtime, tokens: Sequence[int]) -> dict[str, Any]:
    """Measure how well each token of a text but the first is predicted from the cells that are left before it.

    n_tokens: tokens predicted
    ppl: exp of the mean of -ln p
    evicted_from: the first whole segment after the first eviction; None = there is none
    ppl_evicted: as ppl, over that segment and all after it; None = there is none
    n_evictions: evictions meanwhile
    nll: the sum of -ln p over every segment of SEGMENT tokens; the last segment may be shorter
    Raises ConfigError for fewer than two tokens, InputError for a text beyond what the runtime can read.
    """
    if len(tokens) < 2:
        raise ConfigError(f"a perplexity of {counted(len(tokens), 'token')} cannot be had; give at least 2")
    n_tokens = len(tokens) - 1
    n_segments = math.ceil(n_tokens / SEGMENT)
    sums, first = [0.0] * n_segments, n_segments
    for i, loss in enumerate(log_losses(runtime, tokens[:1], tokens[1:])):
        sums[i // SEGMENT] += loss
        if runtime.block_loop.work.evictions:
            first = min(first, math.ceil(i / SEGMENT))
    result = {"n_tokens": n_tokens, "nll": sums, "n_evictions": runtime.block_loop.work.evictions}
    evicted_from = first if first < n_segments else None
    return result | {
        "ppl": pooled([result]),
        "evicted_from": evicted_from,
        "ppl_evicted": None if evicted_from is None else pooled([result], [evicted_from]),
    }


def pooled(results: Sequence[Result], first: Sequence[int] | None = None) -> float:
    """The perplexity of several texts taken as one, each from its own first segment on; None = from the beginning."""
    pairs = list(zip(results, [0] * len(results) if first is None else first, strict=True))
    nll = math.fsum(itertools.chain(*(result["nll"][begin:] for result, begin in pairs)))
    return math.exp(nll / sum(result["n_tokens"] - begin * SEGMENT for result, begin in pairs))


def gap(found: Sequence[Result], full: Sequence[Result]) -> dict[str, float | None]:
    """Perplexities of the same texts under a budget and with the full cache, and how much higher the first one is.

    ppl, full, gap: over all tokens
    ppl_evicted, full_evicted, gap_evicted: over the tokens after the first eviction under the budget, in all texts that
        have any; None = no text has
    Raises ConfigError if the texts cannot be the same.
    """
    n_found, n_full = ([result["n_tokens"] for result in results] for results in (found, full))
    if n_found != n_full or not found:
        raise ConfigError(f"texts of {n_found} and of {n_full} tokens are not the same; give results of the same texts")
    ours, theirs = pooled(found), pooled(full)
    together: dict[str, float | None] = {"ppl": ours, "full": theirs, "gap": ours - theirs}
    evicted = [i for i, result in enumerate(found) if result["evicted_from"] is not None]
    if not evicted:
        return together | {"ppl_evicted": None, "full_evicted": None, "gap_evicted": None}
    first = [found[i]["evicted_from"] for i in evicted]
    ours, theirs = (pooled([results[i] for i in evicted], first) for results in (found, full))
    return together | {"ppl_evicted": ours, "full_evicted": theirs, "gap_evicted": ours - theirs}
