"""Share of the attention of a question and its right answer that still has its cells in a small cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

import edgekv
from edgekv.binding.cache import Cache
from edgekv.evals.document import Question
from edgekv.evals.setting import Setting
from edgekv.policies import Head
from edgekv.policies.attention import window_attention
from edgekv.prompt.turns import Turns

from . import oracle
from .captures import check_attention, stored_rows
from .full_cache import full_cache

Masses = list[list[npt.NDArray[np.float32]]]  # [layer][KV head]: (n_tokens,) by position, with the sum 1


def attention_masses(
    runtime: edgekv.Runtime, setting: Setting, text: Path, questions: Sequence[Question]
) -> list[Masses]:
    """Return the attention of each question, with its right answer after it, to a text of which nothing is evicted.

    Means over query heads and over the tokens that an oracle is given, computed in float64 from a full cache in f16
    beside the cells of the runtime, which stay as they are. Its memory is no part of the runtime's plan.

    Raises ConfigError for attention that is not recomputed here, InputError for a text beyond the trained context.
    """
    check_attention(runtime)
    tokens = list(Turns(runtime.model, None).beginning([text]).tokens())
    asked = [oracle.probe_tokens(runtime, question) for question in questions]
    oracle.check_length(runtime, len(tokens) + max(map(len, asked)))
    with full_cache(runtime, replace(oracle.OracleSetting.of(setting), kv_type="f16"), len(tokens)) as full:
        full.block_loop.read(tokens, lambda _: True, want_logits=False)
        return [_masses(full.block_loop.cache, probe) for probe in asked]


def _masses(cache: Cache, probe: Sequence[int]) -> Masses:
    cache.probe(probe)
    found: Masses = []
    for layer in range(cache.shape.n_layer):
        n_head_kv, _ = cache.layer_heads(layer)
        queries, rows, scale = cache.queries(layer, probed=True)
        groups = queries.reshape(n_head_kv, -1, *queries.shape[1:])
        heads = []
        for g, group in enumerate(groups):
            keys, positions = stored_rows(cache, layer, g, values=False), cache.positions(layer, g)
            mass = window_attention(
                Head(keys=keys, positions=positions, queries=group, query_positions=rows, scale=scale)
            )
            heads.append((mass / mass.sum()).astype(np.float32))
        found.append(heads)
    return found


def surviving_mass(masses: Masses, cache: Cache) -> float:
    """Return the share of the masses that lies in the cells of a cache, in [0, 1]: the mean over all heads."""
    shares = []
    for layer, heads in enumerate(masses):
        for g, mass in enumerate(heads):
            positions = cache.positions(layer, g)
            shares.append(float(mass[positions[positions < len(mass)]].sum(dtype=np.float64)))
    return sum(shares) / len(shares) if shares else 1.0
