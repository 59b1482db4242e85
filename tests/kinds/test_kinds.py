"""Windows and recurrent states beside rows that are evicted: threads, probes, failures, snapshots and plans.

test_exact.py compares the logits of these models.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from diagonals import by_night
from evicting import heads_of
from failing import failing_after
from recorded import recorded_runtime

import edgekv
from edgekv.binding import library
from edgekv.binding.cache import CacheSnapshot
from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta
from edgekv.planning.estimate import cache_params_of

SOME = ("lfm2", "granitehybrid", "falcon-h1", "gemma2", "gemma3", "gpt-oss", "gemma4", "mamba2")
N_PROMPT, N_STEPS = 384, 40
BUDGET = 96


def tokens_of(n, seed=1):
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


def read_and_step(run, tokens):
    """The logits (1 + N_STEPS, n_vocab) of the last prompt token and of every one after it."""
    return np.array([run.read(tokens[:N_PROMPT]), *map(run.step, tokens[N_PROMPT:])])


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss"])
def test_the_sums_of_a_window_do_not_depend_on_threads(family_model, name):
    path, tokens = family_model(name), tokens_of(N_PROMPT + N_STEPS)
    options = {"budget": BUDGET, "block": 32, "focus": False, **heads_of(name)}
    found = []
    for threads in (1, 3):
        with recorded_runtime(path, threads=threads, **options) as run:
            found.append(read_and_step(run, tokens))
    assert np.array_equal(*found)


@pytest.fixture(scope="module", params=[*SOME, "lfm2-windows", "deepseek2"])
def runtime(request, family_model):
    options = {"budget": 64, "block": 32, "recent": 16, "threads": 1, "policy": "keydiff", "focus": True}
    with edgekv.Runtime(family_model(request.param), memory="4GiB", **options) as opened:
        yield opened


def logits(runtime):
    return runtime.context.logits_array().copy()


def held(cache):
    """Everything that later feeds read, the states too; not which tokens of a ring nobody sees."""
    data = cache.snapshot().data.copy()
    ring = ring_of(data, SnapshotMeta.read(CachedSource(cache)))
    ring[ring < -1] = -1
    return data


def ring_of(data, meta):
    """A view of a snapshot's positions in sliding windows."""
    first = ctypes.sizeof(meta.header) + meta.kept.nbytes + meta.added.nbytes + meta.lags.nbytes
    return data[first : first + meta.ring.nbytes].view(np.int32)


def test_a_probe_leaves_no_trace(runtime):
    """Of two pieces, in a text after which the rings of windows were filled more than once."""
    cache, policy = runtime.block_loop.cache, runtime.options.parsed_policy
    n_text, block = 576, runtime.options.block
    assert n_text > 2 * cache.shape.window_cells
    tokens, found = tokens_of(n_text + block), []
    for probe in ([], tokens_of(50, seed=2)):
        cache.clear()
        for i in range(0, n_text, block):
            cache.feed(tokens[i : i + block])
            before = held(cache)
            if probe:
                cache.probe(probe)
                np.testing.assert_array_equal(held(cache), before)
            cache.compact(policy, 64, recent=16)
        cache.feed(tokens[n_text:], want_logits=True)
        found.append((logits(runtime), held(cache)))
    for without, with_probe in zip(*found, strict=True):
        np.testing.assert_array_equal(with_probe, without)


@pytest.mark.parametrize(
    ("n_calls", "n_before", "probe"),
    [(0, 0, False), (0, 32, True), (5, 0, True), (5, 32, False), (20, 0, True), (20, 32, False), (60, 32, True)],
)
def test_what_fails_changes_neither_cells_nor_states(runtime, device, n_calls, n_before, probe):
    if device != "host":
        pytest.skip("a device is not told to stop in the midst of a graph")
    cache, tokens = runtime.block_loop.cache, tokens_of(80)
    cache.clear()
    if n_before:
        cache.feed(tokens[:n_before])
    before = held(cache)
    fail = cache.probe if probe else cache.feed
    with failing_after(runtime, n_calls), pytest.raises(edgekv.NativeError, match="llama_decode"):
        fail(tokens[40:72])
    np.testing.assert_array_equal(held(cache), before)
    cache.feed(tokens[n_before : n_before + 20], want_logits=True)
    found = logits(runtime)
    cache.clear()
    if n_before:
        cache.feed(tokens[:n_before])
    cache.feed(tokens[n_before : n_before + 20], want_logits=True)
    np.testing.assert_array_equal(found, logits(runtime))


@pytest.mark.parametrize("name", by_night(SOME, SOME[::2]))
def test_a_snapshot_goes_on_to_the_bit(family_model, name):
    """Also once windows have gone round their ring, where the next token goes to the same cell as without one."""
    tokens = tokens_of(720, seed=9)
    options = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1}
    with edgekv.Runtime(family_model(name), **options) as runtime:
        block_loop, found = runtime.block_loop, []
        for goes_back in (False, True):
            block_loop.begin()
            assert block_loop.read(tokens[:700], lambda n_tokens: True)
            snapshot = block_loop.snapshot()
            if goes_back:
                block_loop.begin()
                block_loop.read(tokens[300:500], lambda n_tokens: True)
                block_loop.restore(snapshot)
            for token in tokens[700:]:
                block_loop.step(token)
                found.append(runtime.context.logits_array().copy())
        np.testing.assert_array_equal(found[:20], found[20:])


@pytest.mark.parametrize("place", ["seen", "unseen"])
def test_windows_at_tokens_that_never_were_are_refused(family_model, place):
    with edgekv.Runtime(family_model("gemma3"), memory="4GiB", budget=64, block=32, threads=1) as runtime:
        cache = runtime.block_loop.cache
        assert runtime.block_loop.read(tokens_of(700), lambda n_tokens: True)
        before, meta = cache.snapshot().data, SnapshotMeta.read(CachedSource(cache))
        damaged = before.copy()
        ring = ring_of(damaged, meta)
        assert np.array_equal(ring, meta.ring)
        assert ring.min() < -1
        ring[ring.argmin()] = 700 if place == "seen" else -2 - 700
        with pytest.raises(edgekv.ConfigError, match="its sliding windows do not hold the positions"):
            cache.restore(CacheSnapshot(damaged))
        np.testing.assert_array_equal(cache.snapshot().data, before)


@pytest.mark.parametrize("name", SOME)
def test_the_plan_counts_windows_states_and_their_copy(family_model, device, name):
    with edgekv.Runtime(family_model(name), memory="4GiB", budget=64, block=32, threads=1) as rt:
        cache, memory = rt.block_loop.cache, rt.context.memory()
        on_device = sum(share.states for share in rt.plan.devices)
        assert memory.state_bytes == rt.plan.parts.state
        assert (rt.plan.parts.state > 0, on_device > 0) == (device == "host", device != "host")
        assert (cache.shape.window_cells > 0) == (name.startswith("gemma") or name == "gpt-oss")
        assert memory.kv_bytes == rt.plan.parts.kv == (device == "host") * rt.plan.n_cells * rt.plan.cell_bytes
        params = cache_params_of(rt.options)
        params.repositions = cache.repositions
        estimate = library.load().edgekv_cache_estimate_bytes(ctypes.byref(cache.shape), ctypes.byref(params))
        assert cache.bookkeeping_bytes == estimate <= rt.plan.parts.bookkeeping


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_a_probe_of_many_pieces_spares_the_window(family_model, name):
    """llama.cpp begins at the ring's first cell. The last pieces then come upon cells that the text needs."""
    options = {"budget": 256, "block": 32, "threads": 1, "probe_tokens": 170}
    with edgekv.Runtime(family_model(name), memory="4GiB", **options) as rt:
        cache, tokens = rt.block_loop.cache, tokens_of(160)
        for i in range(0, 160, 32):
            cache.feed(tokens[i : i + 32])
        cache.restore(cache.snapshot())  # its ring holds the window alone
        before = held(cache)
        cache.probe(tokens_of(170, seed=2))
        np.testing.assert_array_equal(held(cache), before)
