"""Turning stored keys to other positions: native against float64, and against RoPE at the new position itself."""

from __future__ import annotations

import ctypes
import re

import gguf
import numpy as np
import pytest
from diagonals import diagonal
from gguf.quants import dequantize, quantize
from reference_quant import rotate
from reference_rope import rope_at, turn_stored

from edgekv import ConfigError
from edgekv.binding import library, structs

TYPES = {name: gguf.GGMLQuantizationType[name.upper()] for name in ("f32", "f16", "q8_0", "q4_0")}
PAIRS = ("neox", "norm")
# head_dim, n_rot, Hadamard run, element that turned ones begin at
SHAPES = [
    (32, 32, 0, 0),
    (64, 64, 0, 0),
    (64, 64, 64, 0),
    (64, 16, 64, 0),
    (96, 64, 0, 0),
    (96, 80, 0, 0),
    (128, 128, 128, 0),
    (128, 32, 64, 0),
    (128, 96, 64, 0),
    (256, 256, 128, 0),
    (256, 64, 0, 0),
    (192, 64, 64, 128),
    (160, 64, 0, 96),
    (576, 64, 0, 512),
    (128, 32, 64, 80),
    (96, 16, 0, 40),
]
# Each shape with floats and with blocks; which elements pair is another part of the code than how they lie.
STORED = diagonal(SHAPES, [("f16", "q8_0"), ("f32", "q4_0")])
CASES = diagonal(
    [(*shape, kv_type) for shape, types in STORED for kv_type in types], PAIRS, whole=[(64, 64, 64, 0, "q4_0")]
)
CASES.append(((80, 20, 0, 0, "f16"), "neox"))  # neither whole blocks nor whole vectors
# within the table of the native code and far beyond it, either way
DELTAS = np.array([0, 1, -1, 2, -7, 63, -128, 512, -512, 513, -513, 4_095, -8_192, 100_000, -100_000, 1_234_567])

# the last place of a stored value, as a part of the largest of its block
LAST_PLACE = {"f32": 1e-6, "f16": 2**-10, "q8_0": 1 / 127, "q4_0": 1 / 7}

FLOAT32 = 3e-7  # error of two turns' float32 arithmetic, as a share of the turned values


def frequencies(n_rot, base=10_000.0):
    return base ** (-2 * np.arange(n_rot // 2) / n_rot)


def store(keys, kv_type, rotation):
    """keys (n, head_dim) float64 -> rows as a cache stores them, (n, row bytes)."""
    rows = quantize(rotate(keys, rotation).astype(np.float32), TYPES[kv_type])
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(keys), -1)


def values_of(rows, kv_type):
    """rows (n, row bytes) -> (n, head_dim) float64, still rotated."""
    return dequantize(np.ascontiguousarray(rows).reshape(-1), TYPES[kv_type]).astype(np.float64).reshape(len(rows), -1)


def turn(rows, deltas, w, pairs, kv_type, head_dim, rotation, first=0, n=None):
    """A copy of rows (n, row bytes or more), each turned by its delta."""
    rows, deltas = rows.copy(), np.ascontiguousarray(deltas, dtype=np.int32)
    n = len(rows) if n is None else n
    described = structs.Rows(TYPES[kv_type], rows.ctypes.data, n, rows.strides[0], head_dim, rotation)
    w = np.ascontiguousarray(w, dtype=np.float64)
    arguments = (ctypes.byref(described), w.ctypes.data, first, 2 * len(w), pairs == "norm", deltas.ctypes.data)
    library.call("edgekv_rope_turn", *arguments)
    return rows


def random_keys(n, head_dim, seed=0):
    """Some elements far larger than others, as those of real keys are."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, head_dim)) * np.exp(rng.standard_normal(head_dim))


def rms(x):
    return np.sqrt(np.mean(x * x))


@pytest.mark.parametrize(("case", "pairs"), CASES, ids=str)
def test_turned_rows_are_those_of_the_reference(case, pairs):
    """All but a few values that lie where rounding tips, and those by one place."""
    head_dim, n_rot, rotation, first, kv_type = case
    deltas = np.tile(DELTAS, 8)
    rows = store(random_keys(len(deltas), head_dim), kv_type, rotation)
    w = frequencies(n_rot)
    found = values_of(turn(rows, deltas, w, pairs, kv_type, head_dim, rotation, first), kv_type)
    expected = turn_stored(values_of(rows, kv_type), deltas, w, pairs, kv_type, rotation, first)
    largest = np.abs(expected).reshape(len(rows), -1, 32 if head_dim % 32 == 0 else 4).max(axis=-1)
    place = LAST_PLACE[kv_type] * np.repeat(largest, head_dim // largest.shape[1], axis=1)
    assert (np.abs(found - expected) <= 1.01 * place).all()
    assert np.mean(np.abs(found - expected) <= 1e-3 * place) > (0.99 if kv_type != "f32" else 0.0)


@pytest.mark.parametrize(("case", "pairs"), CASES, ids=str)
def test_a_turned_key_is_the_key_of_its_new_position(case, pairs):
    """Stored at one position and turned to another, it is as near to the truth as one more rounding lets it be."""
    head_dim, n_rot, rotation, first, kv_type = case
    keys, w = random_keys(400, head_dim), frequencies(n_rot)
    rng = np.random.default_rng(1)
    before, after = rng.integers(0, 200_000, (2, len(keys)))
    after[:200] = before[:200] + rng.integers(-512, 513, 200)
    exact = rotate(rope_at(keys, after, w, pairs, first), rotation)
    stored = store(rope_at(keys, before, w, pairs, first), kv_type, rotation)
    turned = values_of(turn(stored, after - before, w, pairs, kv_type, head_dim, rotation, first), kv_type)
    error = rms(values_of(store(rope_at(keys, after, w, pairs, first), kv_type, rotation), kv_type) - exact)
    assert rms(turned - exact) < 1.6 * error + FLOAT32 * rms(exact)
    # a tenth of a position more would be noticed, unless the type itself is coarser
    if kv_type in ("f32", "f16"):
        assert rms(rotate(rope_at(keys, after + 0.1, w, pairs, first), rotation) - exact) > 10 * error


@pytest.mark.parametrize(("case", "pairs"), CASES, ids=str)
def test_two_turns_are_one(case, pairs):
    head_dim, n_rot, rotation, first, kv_type = case
    keys, w = random_keys(400, head_dim), frequencies(n_rot)
    one, other = np.random.default_rng(2).integers(-600, 600, (2, len(keys)))
    shape = (w, pairs, kv_type, head_dim, rotation, first)
    stored = store(keys, kv_type, rotation)
    twice = values_of(turn(turn(stored, one, *shape), other, *shape), kv_type)
    once = values_of(turn(stored, one + other, *shape), kv_type)
    error = rms(values_of(stored, kv_type) - rotate(keys, rotation))
    assert rms(twice - once) < 2.0 * error + FLOAT32 * rms(keys)
    back = values_of(turn(turn(stored, one, *shape), -one, *shape), kv_type)
    assert rms(back - values_of(stored, kv_type)) < 2.0 * error + FLOAT32 * rms(keys)


@pytest.mark.parametrize("kv_type", TYPES)
@pytest.mark.parametrize("rotation", [0, 64])
@pytest.mark.parametrize("first", [0, 128])
def test_what_does_not_turn_keeps_its_bytes(kv_type, rotation, first):
    """Rows with delta 0, rows beyond the last, what lies between rows, and elements stored apart from turned ones."""
    head_dim, n_rot = 256, 48  # one block of 32 and half of the next, or most of a run of 64
    rows = store(random_keys(6, head_dim), kv_type, rotation)
    n_bytes = rows.shape[1]
    padded = np.random.default_rng(3).integers(0, 256, (6, n_bytes + 24), dtype=np.uint8)
    padded[:, :n_bytes] = rows
    found = turn(padded, [5, 0, -5, 900, 0, 1], frequencies(n_rot), "neox", kv_type, head_dim, rotation, first, n=5)
    n_touched = 64 if rotation or kv_type in ("q8_0", "q4_0") else n_rot
    begin, end = first * n_bytes // head_dim, (first + n_touched) * n_bytes // head_dim
    assert np.array_equal(found[[1, 4, 5]], padded[[1, 4, 5]])
    assert np.array_equal(found[:, :begin], padded[:, :begin])
    assert np.array_equal(found[:, end:], padded[:, end:])
    assert (found[[0, 2, 3], begin:end] != padded[[0, 2, 3], begin:end]).any(axis=1).all()


def test_no_rope_turns_nothing():
    rows = store(random_keys(3, 64), "q4_0", 64)
    assert np.array_equal(turn(rows, [1, 2, 3], [], "norm", "q4_0", 64, 64), rows)


def call(kind=1, dim=64, n=1, rotation=0, first=0, n_rot=64, angles=None, deltas=None, data=None):
    """The status of a call on zeros, as an exception."""
    data = np.zeros(1024, dtype=np.uint8) if data is None else data
    angles = np.ones(32) if angles is None else angles
    deltas = np.zeros(8, dtype=np.int32) if deltas is None else deltas
    rows = structs.Rows(kind, data.ctypes.data, n, 128, dim, rotation)
    library.call("edgekv_rope_turn", ctypes.byref(rows), angles.ctypes.data, first, n_rot, 1, deltas.ctypes.data)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_rot": 63}, "n_rot is 63; it must be even, and at most the 64 elements of a row from 0 on"),
        ({"n_rot": 62, "first": 4}, "n_rot is 62; it must be even, and at most the 64 elements of a row from 4 on"),
        ({"first": 1 << 31}, "a row from 2147483648 on"),
        ({"n_rot": 66}, "n_rot is 66"),
        ({"n_rot": 1 << 31}, "n_rot is 2147483648"),
        ({"angles": np.array([1.0, np.nan] * 16)}, "an angle is NaN or infinite"),
        ({"angles": np.array([np.inf] * 32)}, "an angle is NaN or infinite"),
        ({"kind": gguf.GGMLQuantizationType.Q8_1}, "rows of ggml type 9 cannot be read"),
        ({"kind": gguf.GGMLQuantizationType.IQ2_XXS, "dim": 256, "n": 0}, "rows of ggml type 16 cannot be written"),
        ({"kind": -1}, "rows of ggml type -1 cannot be read"),
        ({"kind": gguf.GGMLQuantizationType.Q8_0, "dim": 48, "n_rot": 32}, "whole blocks of the type"),
        ({"rotation": 48}, "not a power of two that divides"),
        ({"rotation": 128}, "not a power of two that divides"),
    ],
)
def test_rows_and_angles_that_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        call(**arguments)


def test_null_arguments():
    data = np.zeros(128, dtype=np.uint8)
    rows = structs.Rows(1, data.ctypes.data, 1, 128, 64, 0)
    whole = [ctypes.byref(rows), np.ones(32).ctypes.data, 0, 64, 1, np.zeros(1, dtype=np.int32).ctypes.data]
    for i in (0, 1, 5):
        with pytest.raises(ConfigError, match="rows, angles or deltas is NULL"):
            library.call("edgekv_rope_turn", *[None if k == i else argument for k, argument in enumerate(whole)])
