"""Speed of the products that reading a block consists of, for the types of a model's own weights."""

from __future__ import annotations

import ctypes as c
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekv.binding import library, structs
from edgekv.errors import UnsupportedModelError
from edgekv.models.ggml_types import TYPE_NUMBERS
from edgekv.models.header import Header, read_header

from .fresh import in_fresh_process

RARE = 0.01  # share of a model's weights under which a type is not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSpeed:
    """Speed of a product of a block with weights, on one thread.

    type: of the weights, such as "Q4_1"; weights: the share of the layers' weights that have it
    depth, n_rows: of the matrix
    block: tokens
    operations_per_s: two for each weight and token, by processor time
    instructions: of edgekv's own products, such as "avx512vnni"; None = the product is ggml's
    limit_per_s: operations of a loop of these instructions that multiplies and adds bytes in registers alone, measured
        in turn with the product; None = the product is ggml's
    """

    type: str
    weights: float
    depth: int
    n_rows: int
    block: int
    operations_per_s: float
    limit_per_s: float | None
    instructions: str | None

    @property
    def share_of_limit(self) -> float | None:
        """Operations a second over the limit's."""
        return self.limit_per_s and self.operations_per_s / self.limit_per_s


def product_speeds(model: Path, block: int) -> list[ProductSpeed]:
    """Measure a product of each type that the matrices of a model's layers have, most frequent first.

    The matrix has the shape that most weights of its type have. Experts are left out, because the text decides how
    many columns each has, and types that random weights cannot be had in. Each takes a fraction of a second, in a
    fresh process.
    Raises ModelError for a file that cannot be read, and WorkerError if the process is killed.
    """
    found: list[ProductSpeed] = []
    for name, weights, (depth, n_rows) in matrices(read_header(model)):
        try:
            speed = in_fresh_process(_measure, TYPE_NUMBERS[name], depth, n_rows, block)
        except UnsupportedModelError:
            continue
        found.append(
            ProductSpeed(
                type=name,
                weights=weights,
                depth=depth,
                n_rows=n_rows,
                block=block,
                operations_per_s=1e9 * speed["rate"],
                limit_per_s=1e9 * speed["limit"] or None,
                instructions=speed["instructions"] or None,
            )
        )
    return found


def matrices(header: Header) -> list[tuple[str, float, tuple[int, int]]]:
    """Return the types of the layers' matrices: name, share of their weights, and the shape that most of these have."""
    shapes: dict[str, Counter[tuple[int, int]]] = {}
    for tensor in header.tensors:
        if tensor.name.startswith("blk.") and len(tensor.shape) == 2 and tensor.ggml_type.is_weight:
            by_shape = shapes.setdefault(tensor.ggml_type.name, Counter())
            by_shape[tensor.shape[0], tensor.shape[1]] += math.prod(tensor.shape)
    n_weights = sum(by_shape.total() for by_shape in shapes.values())
    found = [(name, by_shape.total() / n_weights, by_shape.most_common(1)[0][0]) for name, by_shape in shapes.items()]
    return sorted((one for one in found if one[1] >= RARE), key=lambda one: -one[1])


def _measure(number: int, depth: int, n_rows: int, block: int) -> dict[str, Any]:
    speed = structs.ProductSpeed()
    library.call("edgekv_product_measure", number, depth, n_rows, block, c.byref(speed))
    return {"rate": speed.rate, "limit": speed.limit, "instructions": speed.instructions.decode()}
