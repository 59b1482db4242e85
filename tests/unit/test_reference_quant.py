"""The reference's rounding against gguf's own, and its rotation's properties."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import reference_quant as rq


@pytest.mark.parametrize("n", [1, 2, 64, 128])
def test_hadamard_is_symmetric_and_orthonormal(n):
    matrix = rq.hadamard(n)
    np.testing.assert_array_equal(matrix, matrix.T)
    np.testing.assert_allclose(matrix @ matrix, np.eye(n), atol=1e-14)
    np.testing.assert_allclose(np.abs(matrix), 1 / np.sqrt(n))


@pytest.mark.parametrize(
    ("head_dim", "key", "value"), [(32, 0, 0), (64, 64, 64), (96, 0, 0), (128, 128, 64), (192, 64, 64), (256, 256, 64)]
)
def test_rotation_width(head_dim, key, value):
    assert (rq.key_rotation(head_dim), rq.value_rotation(head_dim)) == (key, value)
    q, k = np.random.default_rng(6).standard_normal((2, 5, head_dim))
    for width in (key, value):
        np.testing.assert_allclose(rq.rotate(rq.rotate(k, width), width), k, atol=1e-13)
        np.testing.assert_allclose((rq.rotate(q, width) * rq.rotate(k, width)).sum(-1), (q * k).sum(-1), atol=1e-12)


@pytest.mark.parametrize(("rounding", "stored_as"), [(rq.round_q8_0, GGMLType.Q8_0), (rq.round_q4_0, GGMLType.Q4_0)])
def test_rounding_equals_quantised_rows(rounding, stored_as):
    x = np.random.default_rng(7).standard_normal((50, 3, 64))
    x[0] = 0
    rows = gguf.quants.quantize(x.astype(np.float32), stored_as)
    np.testing.assert_array_equal(rounding(x), gguf.quants.dequantize(rows, stored_as))
    np.testing.assert_array_equal(rounding(rounding(x)), rounding(x))


def test_rounding_error_is_within_the_step():
    x = np.random.default_rng(8).standard_normal((100, 32))
    largest = np.abs(x).max(axis=1, keepdims=True)
    scale_error = largest * 2.0**-11  # the step itself is kept in float16
    assert (np.abs(rq.round_f16(x) - x) <= np.abs(x) * 2.0**-11).all()
    assert (np.abs(rq.round_q8_0(x) - x) <= 0.5 * largest / 127 + scale_error).all()
    # Sixteen levels -8..7: a value opposite in sign to the largest one may lie a whole step beyond the last.
    assert (np.abs(rq.round_q4_0(x) - x) <= largest / 8 + scale_error).all()
    assert (np.abs(rq.round_q4_0(x) - x) <= 0.5 * largest / 8 + scale_error)[np.abs(x) < largest * 7 / 8].all()
