"""An archive of every kind of layer with cells: beside windows and states, latents, rows that layers share, sinks."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from evicting import HEADS, OF_EACH_STATE

import edgekv
from edgekv.binding.row_archive import RowArchive
from edgekv.generation.sampler import GREEDY

OPTIONS = {"memory": "4GiB", "budget": 32, "recent": 8, "n_sink": 4, "threads": 1, "policy": "keydiff"}
WITH_CELLS = [name for name in OF_EACH_STATE if HEADS[name]]


@pytest.mark.parametrize("name", WITH_CELLS)
def test_a_recall_of_everything_gives_the_logits_of_a_full_cache(family_model, name):
    """One block, so that no row was computed with fewer cells."""
    tokens, question = (np.random.default_rng(seed).integers(3, 250, n).tolist() for seed, n in ((1, 96), (2, 9)))
    options = OPTIONS | {"block": 128, "focus_policy": "snapkv", "reposition": "never"}
    with edgekv.Runtime(family_model(name), **options) as rt, tempfile.TemporaryFile(buffering=0) as file:
        cache = rt.block_loop.cache
        cache.feed(tokens)
        cache.feed(question, want_logits=True)
        full = rt.context.logits_array().copy()
        cache.clear()
        cache.feed(tokens)
        archive = RowArchive(cache, file.fileno(), 0, 1 << 30)
        archive.append(cache)
        cache.compact(rt.options.parsed_policy, 32)
        cache.probe(question)
        assert archive.recall(cache, 1000, before=20, after=10).n_cells == 64
        cache.feed(question, want_logits=True)
        np.testing.assert_allclose(rt.context.logits_array(), full, atol=5e-3 * full.std())
        archive.close()


@pytest.mark.parametrize("policy", ["keydiff", "keydiff+merge"])
@pytest.mark.parametrize("name", OF_EACH_STATE)
def test_sessions_of_every_kind_recall(family_model, name, policy):
    """A model without cells archives and recalls nothing."""
    options = OPTIONS | {"policy": policy, "block": 32, "archive": "1MiB", "reposition": "never"}
    with edgekv.Runtime(family_model(name), **options) as rt, rt.session() as session:
        session.read("the old house by the river " * 20)
        list(session.chat("What is there?", max_tokens=4, sampling=GREEDY, ignore_eos=True))
        stats = session.stats
        assert (stats.recalled_cells, stats.archived_tokens > 32) == ((16, True) if HEADS[name] else (0, False))
