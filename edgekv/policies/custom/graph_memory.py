"""Memory that an ONNX graph needs beside its inputs: a walk over the shapes of everything it calculates."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgekv.errors import PolicyError

from .ort import new_session

SMALL = 4096  # elements of the largest array that is calculated to learn a shape

Dims = tuple[int, ...]


def scratch_bytes(name: str, file: Path, shapes: Mapping[str, Dims]) -> int:
    """Return an upper bound of the bytes that onnxruntime allocates to run a graph on these inputs, without an arena.

    It is the sum of the outputs of all nodes, as if nothing were freed or calculated in place; the graph's output again
    since Python gets a copy; positions in 64 bits, which are converted; and the largest node's inputs and outputs
    again, for kernels that need workspace. Weights are left out: they are resident once the graph is loaded.

    Raises PolicyError if the shapes do not follow from the inputs' shapes.
    """
    graph = _with_shapes(file, shapes)
    sizes = {value.name: _bytes(value) for value in (*graph.input, *graph.value_info, *graph.output)}
    sizes |= {weight.name: math.prod(weight.dims) * _item_bytes(weight.data_type) for weight in graph.initializer}
    total = largest = 0
    for node in graph.node:
        returned = [sizes.get(output) for output in node.output if output]
        if None in returned or _holds_graphs(node):
            raise PolicyError(
                f"{name}: how much node {node.name or node.output[0]} ({node.op_type}) returns does not follow from "
                "the inputs' shapes; say what the graph needs at most with scratch=MiB"
            )
        outputs = sum(filter(None, returned))
        total += outputs
        largest = max(largest, outputs + sum(sizes.get(given) or 0 for given in node.input))
    copied = sum(sizes[value.name] or 0 for value in graph.output)
    converted = sum(_bytes(value) or 0 for value in graph.input if _is_wide(value))
    return total + largest + copied + converted


def _with_shapes(file: Path, shapes: Mapping[str, Dims]) -> Any:
    """Return the graph with the given shapes of its inputs, and all shapes that follow from them."""
    onnx = importlib.import_module("onnx")
    inference = importlib.import_module("onnx.shape_inference")
    model = onnx.load(str(file), load_external_data=False)
    if model.functions:
        model = importlib.import_module("onnx.inliner").inline_local_functions(model)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in model.graph.input:
        if value.name in shapes:
            for dimension, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
                dimension.dim_value = size
    while True:
        model = inference.infer_shapes(model, data_prop=True)
        dims = {
            value.name: _dims(value) for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
        }
        whole = all(dims.get(output) is not None for node in model.graph.node for output in node.output if output)
        if whole or not _fold(onnx, model, dims):
            return model.graph


def _fold(onnx: Any, model: Any, dims: Mapping[str, Dims | None]) -> bool:
    """Calculate the small arrays that depend only on shapes and constants, because shapes may depend on them.

    Their nodes become `Constant`. False if there was none.
    """
    graph = model.graph
    weights = [weight for weight in graph.initializer if math.prod(weight.dims) <= SMALL]
    known = {weight.name for weight in weights}
    constants: list[Any] = []
    ready: list[Any] = []
    rest: list[Any] = []
    changed = False
    for node in graph.node:
        value = _of_shape(node, dims)
        if value is not None:
            node, changed = _constant(onnx, node.output[0], value), True
        outputs = [name for name in node.output if name]
        small = all(size is not None and math.prod(size) <= SMALL for size in map(dims.get, outputs))
        follows = {name for name in node.input if name} <= known and small and not _holds_graphs(node)
        if follows:
            known.update(outputs)
        (constants if node.op_type == "Constant" else ready if follows else rest).append(node)
    if not ready and not changed:
        return False
    results = [name for node in ready for name in node.output if name]
    for name, value in zip(results, _calculated(onnx, model, [*constants, *ready], weights, results), strict=True):
        constants.append(_constant(onnx, name, value))
    del graph.node[:]
    graph.node.extend([*constants, *rest])
    return True


def _calculated(onnx: Any, model: Any, nodes: list[Any], weights: list[Any], results: list[str]) -> list[Any]:
    """Evaluate constant nodes; return their arrays."""
    if not results:
        return []
    helper = onnx.helper
    outputs = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph(nodes, "small", [], outputs, weights)
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    arrays: list[Any] = new_session(part.SerializeToString()).run(results, {})
    return arrays


def _of_shape(node: Any, dims: Mapping[str, Dims | None]) -> np.ndarray | None:
    """Return the value of a node that reads only the shape of an array; None if the shape is unknown."""
    size = dims.get(node.input[0]) if node.op_type in ("Shape", "Size") else None
    if size is None:
        return None
    limits = {attribute.name: attribute.i for attribute in node.attribute}
    part = size[limits.get("start", 0) : limits.get("end", len(size))]
    return np.array(part if node.op_type == "Shape" else math.prod(size), dtype=np.int64)


def _constant(onnx: Any, name: str, value: Any) -> Any:
    return onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value)))


def _dims(value: Any) -> Dims | None:
    """Return the shape of an array, or None if it is not known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not all(dimension.HasField("dim_value") for dimension in tensor.shape.dim):
        return None
    return tuple(dimension.dim_value for dimension in tensor.shape.dim)


def _bytes(value: Any) -> int | None:
    dims = _dims(value)
    return None if dims is None else math.prod(dims) * _item_bytes(value.type.tensor_type.elem_type)


def _item_bytes(kind: int) -> int:
    return int(importlib.import_module("onnx.helper").tensor_dtype_to_np_dtype(kind).itemsize)


def _is_wide(value: Any) -> bool:
    """Return True if an input wants positions in 64 bits."""
    return bool(value.name in ("positions", "query_positions") and _item_bytes(value.type.tensor_type.elem_type) == 8)


def _holds_graphs(node: Any) -> bool:
    """Return True if a node runs graphs of its own (If, Loop, Scan), whose memory is unknown."""
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
