"""Speeds of products, measured by the library."""

from __future__ import annotations

import ctypes

import pytest

from edgekv.binding import library, structs
from edgekv.errors import ConfigError, UnsupportedModelError
from edgekv.evals.products import matrices, product_speeds
from edgekv.models.header import read_header

Q4_0, IQ2_XXS, I32, ABSENT = 2, 16, 26, 4


def measure(*arguments):
    speed = structs.ProductSpeed()
    library.call("edgekv_product_measure", *arguments, ctypes.byref(speed))
    return speed


@pytest.mark.parametrize(("type_number", "n_tokens"), [(Q4_0, 32), (IQ2_XXS, 32), (IQ2_XXS, 1)])
def test_a_product_and_its_limit_are_measured(type_number, n_tokens):
    speed = measure(type_number, 256, 96, n_tokens)
    assert speed.rate > 0
    assert speed.instructions in (b"", b"avx2", b"avxvnni", b"avx512vnni")
    assert (speed.limit > 0) == (speed.instructions != b"")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 64, 96, 8), ConfigError, "type=-1 is no type of weights"),
        ((ABSENT, 64, 96, 8), ConfigError, "type=4 is no type of weights"),
        ((1000, 64, 96, 8), ConfigError, "type=1000 is no type of weights"),
        ((Q4_0, 48, 96, 8), ConfigError, "a multiple of 32"),
        ((Q4_0, 0, 96, 8), ConfigError, "depth=0, n_rows=96 and n_tokens=8"),
        ((Q4_0, 64, 0, 8), ConfigError, "n_rows=0"),
        ((Q4_0, 64, 96, 0), ConfigError, "n_tokens=0"),
        ((I32, 64, 96, 8), UnsupportedModelError, "random weights in i32"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        measure(*arguments)


def test_a_models_own_types_are_measured(tiny_model):
    path = tiny_model(quantization="Q8_0")
    ((name, weights, (depth, n_rows)),) = matrices(read_header(path))
    shapes = {tensor.shape for tensor in read_header(path).tensors if tensor.name.startswith("blk.")}
    assert (name, weights) == ("Q8_0", 1.0)
    assert (depth, n_rows) in shapes
    (speed,) = product_speeds(path, 16)
    assert (speed.type, speed.depth, speed.n_rows, speed.block) == ("Q8_0", depth, n_rows, 16)
    assert speed.operations_per_s > 1e6
    assert (speed.limit_per_s is None) == (speed.share_of_limit is None) == (speed.instructions is None)
