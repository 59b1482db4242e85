"""Scores of rows as a cache stores them: quantised, Hadamard-rotated; and of W_O as a model file stores it."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import gguf
import numpy as np
import pytest
from policy_arrays import KEYDIFFS, Shape, all_arrays, assert_close, beside, named, names_read
from reference_quant import rotate

from edgekv import ConfigError
from edgekv.binding import library, structs
from edgekv.policies import Head, parse_policy
from edgekv.policies.critical import wo_norms
from edgekv.scoring.kernels import native_rows

Q8_0, Q4_0 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0
DIMS = [(32, 0, 0), (96, 0, 0), (64, 64, 64), (192, 64, 64), (256, 256, 64), (128, 128, 64)]  # d, K's and V's rotation
SPECS = [
    *KEYDIFFS,
    "l2norm(kernel=3)",
    "h2o",
    "tova",
    "snapkv",
    "ahakv",
    "tova+caote",
    "keydiff+fastcaote",
    "snapkv+caote+critical",
    "random+critical",
    "ahakv+fastcaote",
]


def one_head(spec, d, n=300):
    """The head of a policy, float32 arrays."""
    shape = Shape(d=d, d_v=d, n=n, heads=1, group=2, rows=16)
    arrays = all_arrays(shape)
    policy = parse_policy(spec)
    head = Head(
        keys=arrays["keys"][0],
        positions=arrays["positions"][0],
        values=arrays["values"][0],
        accumulated=arrays["accumulated"][0],
        wo_norm=wo_norms(arrays["values"][0], arrays["w_o"]),
        budget=100,
    )
    if "queries" in names_read(policy):
        last = int(head.positions.max())
        rows = np.arange(last - 15, last + 1, dtype=np.int32)
        head = replace(head, queries=arrays["queries"], query_positions=rows)
    return policy, head


def quantised(x, kind, rotation):
    """Rows (n, bytes) as a cache stores x (n, d), and what they stand for, (n, d) float64."""
    rows = gguf.quants.quantize(rotate(x.astype(np.float64), rotation).astype(np.float32), kind)
    return rows, rotate(gguf.quants.dequantize(rows, kind).astype(np.float64), rotation)


def score_rows(policy, head, keys, values, key_rotation=0):
    """Native scores (n,) of a head whose keys and values lie as `struct edgekv_rows` say."""
    norms = head.wo_norm.astype(np.float32)
    cells = structs.Cells.of(keys, values, head.positions, head.accumulated, norms, 0, 0)
    queries = None
    if head.queries is not None:
        rows = rotate(head.queries.astype(np.float64), key_rotation).astype(np.float32)
        last = int(head.query_positions[-1]) + 1
        queries = structs.Queries.of(rows, head.query_positions, float(head.attention_scale), 0.0, last)
    fields = structs.Policy(**policy.native_fields())
    scores = np.empty(len(head.positions), dtype=np.float32)
    pointer = None if queries is None else ctypes.byref(queries)
    arguments = (ctypes.byref(fields), ctypes.byref(cells), pointer, head.budget, scores.ctypes.data)
    library.call("edgekv_score", *arguments)
    return scores


QUANTISED = [(*dims, kind) for kind in (Q8_0, Q4_0) for dims in DIMS]


@pytest.mark.parametrize(("spec", "rows"), beside(SPECS, QUANTISED, n=2), ids=named)
def test_quantised_rows_equal_the_reference_on_their_values(spec, rows):
    """Rows of a quantised cache: rotated, rounded, scored where they lie; the reference sees what they stand for."""
    d, key_rotation, value_rotation, kind = rows
    policy, head = one_head(spec, d)
    key_rows, keys = quantised(head.keys, kind, key_rotation)
    value_rows, values = quantised(head.values, kind, value_rotation)
    expected = policy.score(replace(head, keys=keys, values=values))
    found = score_rows(
        policy,
        head,
        native_rows(key_rows, int(kind), d, key_rotation),
        native_rows(value_rows, int(kind), d, value_rotation),
        key_rotation,
    )
    assert_close(found, expected)


@pytest.mark.parametrize(("spec", "dims"), beside(SPECS, [dims for dims in DIMS if dims[1]]), ids=named)
def test_rotated_rows_score_as_plain_ones(spec, dims):
    d, key_rotation, value_rotation = dims
    policy, head = one_head(spec, d)
    keys = rotate(head.keys.astype(np.float64), key_rotation).astype(np.float32)
    values = rotate(head.values.astype(np.float64), value_rotation).astype(np.float32)
    rotated = native_rows(keys, 0, d, key_rotation), native_rows(values, 0, d, value_rotation)
    plain = native_rows(head.keys, 0, d), native_rows(head.values, 0, d)
    assert_close(score_rows(policy, head, *rotated, key_rotation), score_rows(policy, head, *plain))


def test_keys_and_values_may_be_of_different_types():
    policy, head = one_head("tova+caote", 64)
    key_rows, keys = quantised(head.keys, Q8_0, 64)
    halves = head.values.astype(np.float16)
    expected = policy.score(replace(head, keys=keys, values=halves))
    found = score_rows(policy, head, native_rows(key_rows, int(Q8_0), 64, 64), native_rows(halves, 1, 64), 64)
    assert_close(found, expected)


def test_rows_that_no_cache_holds_are_refused():
    """No type of rows, part of a block, a rotation that does not divide the row, a row longer than its stride."""
    policy, head = one_head("keydiff+caote", 96, n=4)
    plain = native_rows(head.keys, 0, 96)
    no_types = [(kind, 96, 0) for kind in (4, 26, -1, 1000)]
    for kind, d, rotation in [*no_types, (8, 80, 0), (0, 96, 64), (0, 96, 3), (0, 0, 0), (0, 97, 0)]:
        for name in ("keys", "values"):
            rows = {"keys": plain, "values": plain} | {name: native_rows(head.keys, kind, d, rotation)}
            with pytest.raises(ConfigError, match=r"rows"):
                score_rows(policy, head, **rows)


@pytest.mark.parametrize("spec", ["tova", "tova+caote", "tova+critical"])
def test_cells_without_what_the_policy_reads_are_refused(spec):
    policy, head = one_head(spec, 64, n=4)
    rows = native_rows(head.keys, 0, 64)
    cells = structs.Cells.of(rows, None, head.positions, None, None, 0, 0)
    fields = structs.Policy(**policy.native_fields())
    scores = np.empty(4, dtype=np.float32)
    with pytest.raises(ConfigError):
        library.call("edgekv_score", ctypes.byref(fields), ctypes.byref(cells), None, 2, scores.ctypes.data)


# ---- norm1(V W_O) ----

W_O_KINDS = [gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_1", "Q8_0")]


@pytest.mark.parametrize("kind", W_O_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("d_v", "rotation"), [(64, 0), (32, 0), (64, 64), (128, 64)])
def test_norms_of_projected_values(d_v, rotation, kind):
    """Of each KV head, over the query heads of its group, whatever the type of the model's weights."""
    rng = np.random.default_rng(d_v)
    n, n_head, n_embd, group = 37, 6, 40, 3
    rows = gguf.quants.quantize(rng.standard_normal((n_embd, n_head * d_v), dtype=np.float32), kind)
    w_o = gguf.quants.dequantize(rows, kind).reshape(n_embd, n_head, d_v).transpose(1, 2, 0)
    values = rng.standard_normal((n, d_v))
    stored = rotate(values, rotation).astype(np.float32)
    for first in (0, 3):
        norms = np.empty(n, dtype=np.float32)
        described = native_rows(stored, 0, d_v, rotation), native_rows(rows, int(kind), n_head * d_v)
        library.call("edgekv_wo_norm", *map(ctypes.byref, described), first, group, norms.ctypes.data)
        expected = wo_norms(values, w_o[first : first + group])
        np.testing.assert_allclose(norms, expected, rtol=1e-4)


def test_projections_that_do_not_fit_the_values_are_refused():
    values = np.zeros((3, 64), dtype=np.float32)
    w_o = np.zeros((8, 4 * 64), dtype=np.float32)
    norms = np.empty(3, dtype=np.float32)
    for first, n_head, width in [(0, 0, 256), (3, 2, 256), (0, 2, 64), (4, 1, 256)]:
        rows = native_rows(values, 0, 64), native_rows(w_o, 0, width)
        with pytest.raises(ConfigError):
            library.call("edgekv_wo_norm", *map(ctypes.byref, rows), first, n_head, norms.ctypes.data)
