"""Layers that read the rows of an earlier one score them too: their query heads count as more heads of each group."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from diagonals import diagonal
from evicting import heads_of
from gguf.quants import dequantize
from own_cache import own_cache
from recorded import recorded_runtime

from edgekv.policies import register, unregister
from edgekv.scoring import select

# By family, the layers that read the rows of each evicting layer, itself the first, and their KV heads.
READERS = {"gemma4": ((0,), (2, 4, 5)), "gemma3n": ((4,), (9,), (14,), (19, 24))}
N_HEAD_KV = {"gemma4": 2, "gemma3n": 1}
NUMERICS = 4e-2  # error of queries: short batches sum values in f16, and later layers see it


def tokens_of(n):
    return np.random.default_rng(1).integers(3, 250, n).tolist()


def joined(arrays, n_head_kv):
    """Arrays (n_head, ...) of layers that read the same rows -> one, with the heads of each KV head side by side."""
    grouped = [array.reshape(n_head_kv, -1, *array.shape[1:]) for array in arrays]
    return np.concatenate(grouped, axis=1).reshape(-1, *arrays[0].shape[1:])


def of_first(array, n_head_kv, n_readers):
    """The heads of the first of the layers that were joined."""
    groups = np.split(array, n_head_kv)
    return np.concatenate([group[: len(group) // n_readers] for group in groups])


def projections(path, name):
    """W_O of the heads that read each evicting layer's rows, (n_head, d_v, n_embd)."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    heads = {"gemma4": 4, "gemma3n": 2}[name]

    def of(il):
        stored = tensors[f"blk.{il}.attn_output.weight"]
        w_o = dequantize(stored.data, stored.tensor_type)
        return w_o.reshape(len(w_o), heads, -1).transpose(1, 2, 0)

    return [joined([of(il) for il in layers], N_HEAD_KV[name]) for layers in READERS[name]]


def arrays_of(cache, layer, n_head_kv, reads):
    """Return the arrays of a layer for a policy that reads `reads`."""

    def rows(head, values):
        data, described = cache.rows(layer, head, values=values)
        return np.frombuffer(data.tobytes(), np.float16).reshape(described.n, described.dim)

    seen = {
        "keys": np.array([rows(head, False) for head in range(n_head_kv)]),
        "values": np.array([rows(head, True) for head in range(n_head_kv)]),
        "positions": np.array([cache.positions(layer, head) for head in range(n_head_kv)]),
    }
    if "queries" in reads:
        seen |= dict(zip(("queries", "query_positions", "scale"), cache.queries(layer), strict=True))
    return seen


@pytest.mark.parametrize(("name", "block"), diagonal(list(READERS), [32, 128]))
def test_the_window_holds_the_queries_of_all_readers(family_model, name, block):
    """Token by token too, where a row of the ring is written over."""
    path, tokens = family_model(name), tokens_of(256 + 40)
    options = {"policy": "snapkv(window=32)", "budget": 1024, "block": block, "focus": False}
    with (
        recorded_runtime(path, **options, **heads_of(name)) as run,
        own_cache(path, n_cells=1024, block=block, visible={}) as own,
    ):
        own.read(tokens[:256])
        run.read(tokens[:256])
        for n_rows, step in ((32, None), (1, 256), (1, 257)):
            if step is not None:
                own.step(tokens[step])
                run.step(tokens[step])
            for layer, readers in enumerate(READERS[name]):
                expected = [queries[:, -n_rows:] for queries in own.queries[readers[0]]]
                assert len(expected) == len(readers)
                expected = joined(expected, N_HEAD_KV[name])
                found = run.runtime.block_loop.cache.queries(layer)[0][:, -n_rows:]
                assert found.shape == expected.shape
                assert np.abs(found - expected).max() < NUMERICS * np.abs(expected).max()


def kept_sets(path, name, spec, **options):
    """Return the cells that heads keep, that the reference keeps, and that it keeps by the first readers alone."""
    n_head_kv, w_o, expected, of_one = N_HEAD_KV[name], projections(path, name), [], []

    def choose(cache, policy, budget, keywords):
        protection = {key: keywords[key] for key in ("n_sink", "recent")} | {"budget": budget}
        for layer, (outputs, readers) in enumerate(zip(w_o, READERS[name], strict=True)):
            arrays = arrays_of(cache, layer, n_head_kv, policy.reads) | {"w_o": outputs} | protection
            alone = {key: of_first(arrays[key], n_head_kv, len(readers)) for key in {"queries", "w_o"} & set(arrays)}
            for kept, seen in ((expected, arrays), (of_one, arrays | alone)):
                chosen = select(spec, backend="reference", **seen)
                kept.extend(where[cells] for where, cells in zip(arrays["positions"], chosen, strict=True))

    # h2o scores once: what it gathered later depends on what was evicted before
    tokens = tokens_of(128 if spec == "h2o" else 256)
    options |= {"policy": spec, "budget": 96, "block": 128, "focus": False}
    with recorded_runtime(path, before_compaction=choose, **options, **heads_of(name)) as run:
        run.read(tokens)
    found = [kept for _, layers in run.compactions for heads in layers for kept in heads]
    assert len(found) == len(expected) > 0
    return found, expected, of_one


SPECS = ["snapkv", "tova", "h2o", "ahakv", "keydiff", "l2norm", "snapkv+caote", "snapkv+critical", "keydiff+critical"]


@pytest.mark.parametrize(("spec", "name"), diagonal(SPECS, list(READERS), whole=("snapkv", "snapkv+caote")))
def test_kept_positions_are_those_of_the_reference(family_model, name, spec):
    found, expected, of_one = kept_sets(family_model(name), name, spec)
    for kept, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(kept, right)
    reads_heads = spec not in ("keydiff", "l2norm")
    assert reads_heads == any(not np.array_equal(kept, one) for kept, one in zip(found, of_one, strict=True))


def test_repacked_projections_of_all_readers_are_read_in_the_file(family_model):
    path = family_model("gemma4", quantization="Q4_0")
    found, expected, of_one = kept_sets(path, "gemma4", "keydiff+critical", repack=True)
    for kept, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(kept, right)
    assert any(not np.array_equal(kept, one) for kept, one in zip(found, of_one, strict=True))


@pytest.mark.parametrize("name", READERS)
def test_a_custom_scorer_is_given_all_of_them(family_model, name):
    """The scorer gets the queries of all readers. Scores are not scaled in these models, so attention of the newest
    row is that of `tova`."""
    path, tokens, kept = family_model(name), tokens_of(320), {}

    def newest(keys, queries):
        logits = queries[:, -1].reshape(len(keys), -1, keys.shape[2]) @ keys.transpose(0, 2, 1)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        return (weights / weights.sum(axis=2, keepdims=True)).mean(axis=1)

    register("newest", newest, weights=True, rows=1)
    try:
        for policy in ("newest", "tova"):
            options = {"policy": policy, "budget": 96, "block": 64, "focus": False}
            with recorded_runtime(path, **options, **heads_of(name)) as run:
                run.read(tokens)
            kept[policy] = [where for _, layers in run.compactions for heads in layers for where in heads]
    finally:
        unregister("newest")
    for own, built_in in zip(kept["newest"], kept["tova"], strict=True):
        np.testing.assert_array_equal(own, built_in)
