"""Round a row of the KV cache as storing it does: f16, q8_0 and q4_0, in numpy.

    stored(x) = H round(H x)        H the head's Walsh-Hadamard rotation (quantised caches only), H H = 1

llama.cpp keeps H x and rotates the query and the attention output instead. Both say the same, because
<H q, H k> = <q, k>; undoing the rotation here leaves the attention formulas free of it.
"""

from __future__ import annotations

import functools

import numpy as np

KV_TYPES = ("exact", "f16", "q8_0", "q4_0")
QUANT_BLOCK = 32  # values that share one scale
ROTATION_MIN = 64  # rotation width of V, and the smallest of K


@functools.cache
def hadamard(n):
    """Orthonormal Walsh-Hadamard matrix (n, n), n a power of two: H_2n = [[H, H], [H, -H]] / sqrt(2)."""
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(n)


def rotate(x, width):
    """x (..., head_dim) with each run of `width` values multiplied by H; width 0 leaves x alone."""
    if width == 0:
        return x
    return (x.reshape(*x.shape[:-1], -1, width) @ hadamard(width)).reshape(x.shape)


def key_rotation(head_dim):
    """Rotation width of Q and K: the largest 64 * 2^i that divides head_dim, or 0."""
    width = 0
    while head_dim % max(2 * width, ROTATION_MIN) == 0:
        width = max(2 * width, ROTATION_MIN)
    return width


def value_rotation(head_dim):
    """Rotation width of V: 64, whatever the head's size, or 0 where 64 does not divide head_dim."""
    return ROTATION_MIN if head_dim % ROTATION_MIN == 0 else 0


def round_f16(x):
    """x (...) rounded to the nearest float16, from the float32 that the runtime holds."""
    return x.astype(np.float32).astype(np.float16).astype(np.float64)


def round_q8_0(x):
    """x (..., 32 n) through q8_0: d = max|x| / 127, q = round(x / d), value = q * f16(d).

    The arithmetic is float32, as in ggml: a value close to a rounding boundary then falls on the same side.
    """
    blocks = x.reshape(-1, QUANT_BLOCK).astype(np.float32)
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    q = np.rint(blocks * _inverse(d))
    return _scaled(q, d).reshape(x.shape)


def round_q4_0(x):
    """x (..., 32 n) through q4_0: d = -m / 8, q = min(15, floor(x / d + 8.5)), value = (q - 8) * f16(d).

    m is the value of the block largest in magnitude, with its sign; the first of equals. float32 as above.
    """
    blocks = x.reshape(-1, QUANT_BLOCK).astype(np.float32)
    largest = np.abs(blocks).argmax(axis=1)[:, None]
    d = np.take_along_axis(blocks, largest, axis=1) / np.float32(-8)
    q = np.minimum(15, np.floor(blocks * _inverse(d) + np.float32(8.5)))
    return _scaled(q - 8, d).reshape(x.shape)


def stored_key(k, kv_type):
    """k (..., head_dim) after RoPE -> what attention reads back."""
    return _stored(k, kv_type, key_rotation(k.shape[-1]))


def stored_value(v, kv_type):
    """v (..., head_dim) -> what attention reads back."""
    return _stored(v, kv_type, value_rotation(v.shape[-1]))


def _stored(x, kv_type, width):
    if kv_type == "exact":
        return x
    if kv_type == "f16":
        return round_f16(x)
    rounding = {"q8_0": round_q8_0, "q4_0": round_q4_0}[kv_type]
    return rotate(rounding(rotate(x, width)), width)


def _inverse(d):
    """1 / d, and 0 for a block of zeros."""
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _scaled(q, d):
    return q.astype(np.float64) * round_f16(d)
