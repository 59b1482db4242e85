"""An archive of every kind of layer with cells: beside windows and states, latents, rows that layers share, sinks."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from diagonals import by_night, diagonal
from evicting import HEADS, OF_EACH_STATE, RUN, architecture_of, by_layer, by_turns, heads_of
from exactness import error
from own_cache import own_cache
from recorded import recorded_runtime
from test_exact import short_batches

import edgekv
from edgekv.binding.row_archive import RowArchive
from edgekv.generation.sampler import GREEDY

OPTIONS = {"memory": "4GiB", "budget": 32, "recent": 8, "n_sink": 4, "threads": 1, "policy": "keydiff"}
WITH_CELLS = [name for name in RUN if HEADS[name]]
KV_TYPES = ("f16", "q8_0", "q4_0")
WHOLE = [(name, kv_type) for name in WITH_CELLS for kv_type in KV_TYPES]
# rows of every layer and latents are archived in each type by day; the others, beside windows and states, with sinks,
# soft caps, shared rows or biases, in one
BY_DAY = diagonal(WITH_CELLS, KV_TYPES, whole=("phi3", "deepseek2"))


@pytest.mark.filterwarnings("ignore:kv_type=q4_0 may spoil:UserWarning")
@pytest.mark.parametrize(("name", "kv_type"), by_night(WHOLE, BY_DAY))
def test_a_recall_of_everything_gives_the_logits_of_a_full_cache(family_model, name, kv_type):
    """One block, so that no row was computed with fewer cells."""
    tokens, question = (np.random.default_rng(seed).integers(3, 250, n).tolist() for seed, n in ((1, 96), (2, 9)))
    options = OPTIONS | {"block": 128, "focus_policy": "snapkv", "reposition": "never", "kv_type": kv_type}
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
        bound = 5e-3 if rt.plan.device_bytes == 0 else short_batches(name)
        np.testing.assert_allclose(rt.context.logits_array(), full, rtol=0, atol=bound * full.std())
        archive.close()


@pytest.mark.parametrize("name", OF_EACH_STATE)
def test_every_head_with_cells_has_a_rest_but_of_latents(family_model, name):
    """The logits of what follows are finite."""
    tokens, question = (np.random.default_rng(seed).integers(3, 250, n).tolist() for seed, n in ((1, 96), (2, 9)))
    options = OPTIONS | {"block": 128, "focus_policy": "snapkv", "reposition": "never"}
    with edgekv.Runtime(family_model(name), **options) as rt, tempfile.TemporaryFile(buffering=0) as file:
        cache = rt.block_loop.cache
        cache.feed(tokens)
        archive = RowArchive(cache, file.fileno(), 0, 1 << 30)
        archive.append(cache)
        cache.compact(rt.options.parsed_policy, 32)
        cache.probe(question)
        assert archive.recall(cache, 16, before=20, after=10, with_rest=True).n_cells == (16 if HEADS[name] else 0)
        has_latents = cache.shape.latent_dim_v > 0
        assert all((cache.positions(*at)[0] == -1) != has_latents for at in cache.heads)
        cache.feed(question, want_logits=True)
        assert np.isfinite(rt.context.logits_array()).all()
        archive.close()


N_BLOCKS, N_STEPS = 3, 12
# beside kinds of state: keys that turn in part, and in three sections
MORE = ("glm4moe", "minicpm3", "qwen2vl")
MOVABLE = [name for name in (*OF_EACH_STATE, *MORE) if HEADS[name] and architecture_of(name).repositions]
SHORT_BATCHES = 4e-2  # llama.cpp sums blocks of less than 64 tokens in f16 (test_exact.py)


@pytest.mark.parametrize("name", MOVABLE)
def test_turned_keys_that_all_come_back_meet_the_same_distances(family_model, name):
    """Heads keep the newest tokens, so every block sees true distances, but is archived at other RoPE positions. When
    all are back, keys are as far apart as in the text."""
    path, tokens = family_model(name), np.random.default_rng(1).integers(3, 250, 32 * N_BLOCKS + N_STEPS).tolist()
    options = {"budget": 32, "block": 128, "recent": 8, "n_sink": 0, "policy": "sink(n_sink=0)"}
    with recorded_runtime(path, **options, **heads_of(name)) as run, tempfile.TemporaryFile(buffering=0) as file:
        cache = run.runtime.block_loop.cache
        if not cache.repositions:
            pytest.skip("layers with a sliding window keep their positions")
        archive = RowArchive(cache, file.fileno(), 0, 1 << 30)
        for first in range(0, 32 * N_BLOCKS, 32):
            cache.feed(tokens[first : first + 32])
            archive.append(cache)
            cache.compact(run.runtime.options.parsed_policy, 32, reposition=True)
        assert cache.rope_past == 32
        cache.probe(tokens[:9])
        assert archive.recall(cache, 1000, before=20, after=10).n_cells == 32 * (N_BLOCKS - 1)
        run.note()
        assert cache.rope_past == cache.n_past
        found = []
        for token in tokens[32 * N_BLOCKS :]:
            cache.feed([token], want_logits=True)
            found.append(run.logits())
        archive.close()
    visible = by_layer(name, run.visible(len(tokens)))
    with own_cache(path, n_cells=256, block=32, visible=visible) as own:
        own.read(tokens[: 32 * N_BLOCKS])
        expected = [own.step(token) for token in tokens[32 * N_BLOCKS :]]
    assert max(map(error, found, expected)) < SHORT_BATCHES


@pytest.mark.parametrize("name", by_turns(1))
def test_sessions_of_every_kind_come_back_from_the_disk_and_fork(family_model, name):
    """Archived rows by their positions, windows and states whole."""
    options = OPTIONS | {"block": 32, "archive": "1MiB", "reposition": "never", "swap_memory": 0}

    def said(session):
        return "".join(session.chat("What is there?", max_tokens=4, sampling=GREEDY, ignore_eos=True))

    with edgekv.Runtime(family_model(name), **options) as rt, rt.session() as session, rt.session() as other:
        other.read("another text")
        session.read("the old house by the river " * 20)
        said(session)
        before = rt.block_loop.cache.snapshot().data
        fork = session.fork()
        other.budgets()
        session.budgets()
        assert np.array_equal(rt.block_loop.cache.snapshot().data, before)
        assert said(fork) == said(session)
        assert fork.stats.recalled_cells == session.stats.recalled_cells


@pytest.mark.parametrize("name", OF_EACH_STATE)
def test_sessions_of_every_kind_recall(family_model, name):
    """A model without cells archives and recalls nothing."""
    options = OPTIONS | {"block": 32, "archive": "1MiB", "reposition": "never"}
    with edgekv.Runtime(family_model(name), **options) as rt, rt.session() as session:
        session.read("the old house by the river " * 20)
        list(session.chat("What is there?", max_tokens=4, sampling=GREEDY, ignore_eos=True))
        stats = session.stats
        assert (stats.recalled_cells, stats.archived_tokens > 32) == ((16, True) if HEADS[name] else (0, False))
