"""Built-in policies as ONNX graphs, with which tests compare reference, library and graph.

A graph's cells are ascending by position, so neighbours in the arrays are neighbours in the text.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgekv.policies import KeyDiff, Policy, SnapKV, parse_policy
from edgekv.policies.custom.onnx import DIMENSIONS, OUTPUT, POSITIONS, PROTECT_KEY, WEIGHTS_KEY, WINDOW_KEY
from edgekv.policies.keydiff import EPSILON

OPSET = 13  # every onnxruntime since 1.6 runs it, and the file format of its time
IR_VERSION = 7
LOWEST = float(np.finfo(np.float32).min)


def export_policy(
    spec: str, path: Path, *, scale: float | None = None, softcap: float = 0.0, sinks: bool = False
) -> None:
    """Write the graph of keydiff or snapkv, with any of their options that need neither a budget nor a sort.

    scale: of Q K^T, None = 1/sqrt(d); softcap: c of the model's attention, c tanh(x/c), 0 = none; sinks: the
    graph gets the model's learnt sinks. All three are snapkv's.
    """
    policy = parse_policy(spec)
    graph = _snapkv(policy, scale, softcap, sinks) if isinstance(policy, SnapKV) else _keydiff(policy)
    path.write_bytes(graph.model(policy).SerializeToString())


class _Graph:
    """A graph under construction: every call adds a node and returns the name of its output."""

    def __init__(self, *inputs: str) -> None:
        self._inputs = inputs
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._numbers = itertools.count()
        self.metadata: dict[str, str] = {}

    def __call__(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        output = output or f"{kind.lower()}_{next(self._numbers)}"
        self._nodes.append(onnx.helper.make_node(kind, inputs, [output], name=f"make_{output}", **attributes))
        return output

    def constant(self, value: Any, dtype: type[np.generic] = np.float32) -> str:
        name = f"constant_{next(self._numbers)}"
        self._constants.append(self.tensor(value, dtype, name))
        return name

    def tensor(self, value: Any, dtype: type[np.generic], name: str = "") -> Any:
        return onnx.numpy_helper.from_array(np.asarray(value, dtype=dtype), name)

    def whole(self, *values: int) -> str:
        """Axes, shapes and indices, (n,) int64."""
        return self.constant(values, np.int64)

    def size(self, name: str, axis: int) -> str:
        """(1,) int64: how many elements an array has along an axis."""
        return self("Slice", self("Shape", name), self.whole(axis), self.whole(axis + 1))

    def to(self, name: str, kind: str) -> str:
        return self("Cast", name, to=getattr(onnx.TensorProto, kind))

    def model(self, policy: Policy) -> Any:
        """Return the finished, checked ModelProto."""
        helper, kinds = onnx.helper, onnx.TensorProto
        types = {name: kinds.INT32 if name in POSITIONS else kinds.FLOAT for name in self._inputs}
        inputs = [helper.make_tensor_value_info(name, types[name], DIMENSIONS[name]) for name in self._inputs]
        output = helper.make_tensor_value_info(OUTPUT, kinds.FLOAT, ("n_head_kv", "n"))
        graph = helper.make_graph(
            self._nodes, policy.name, inputs, [output], self._constants, doc_string=f"{policy.spec}: {policy.paper}"
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgekv")
        helper.set_model_props(model, self.metadata)
        onnx.checker.check_model(model, full_check=True)
        return model


def _keydiff(policy: KeyDiff) -> _Graph:
    """-similarity(anchor, key), by matrix products: only `euclidean` calculates something as large as the keys."""
    graph = _Graph("keys")
    norms = graph("ReduceL2", "keys", axes=[2], keepdims=0)
    if policy.anchor == "mean":
        anchor = graph("ReduceMean", "keys", axes=[1], keepdims=1)
    else:
        zero = graph.constant(0.0)
        inverse = graph("Where", graph("Greater", norms, zero), graph("Reciprocal", norms), zero)
        total = graph("MatMul", graph("Unsqueeze", inverse, graph.whole(1)), "keys")
        anchor = graph("Div", total, graph.to(graph.size("keys", 1), "FLOAT"))
    if policy.metric == "euclidean":
        scores = graph("ReduceL2", graph("Sub", "keys", anchor), axes=[2], keepdims=0)
    else:
        column = graph("Transpose", anchor, perm=[0, 2, 1])
        similarity = graph("Squeeze", graph("MatMul", "keys", column), graph.whole(2))
        if policy.metric == "cosine":
            # eq. 7, the mean over j of cos(K[i], K[j]), is the unit key times the mean of unit keys
            length = norms
            if policy.anchor != "pairwise":
                length = graph("Mul", norms, graph("ReduceL2", anchor, axes=[2], keepdims=0))
            similarity = graph("Div", similarity, graph("Max", length, graph.constant(EPSILON)))
        scores = graph("Neg", similarity)
    graph("Identity", _pooled(graph, scores, policy.kernel, policy.pool), output=OUTPUT)
    return graph


def _snapkv(policy: SnapKV, scale: float | None, softcap: float, sinks: bool) -> _Graph:
    """pool(a_win); query head h belongs to KV head h // G."""
    graph = _Graph("keys", "queries", "positions", "query_positions", *(["sinks"] if sinks else []))
    graph.metadata = {WINDOW_KEY: str(policy.window), WEIGHTS_KEY: "true", PROTECT_KEY: "true"}
    n_head_kv, d = graph.size("keys", 0), graph.size("keys", 2)

    # positions of the rows of a KV head's query heads, (1, G W, 1)
    zero, one = graph.whole(0), graph.whole(1)
    group = graph("Div", graph.size("queries", 0), n_head_kv)
    all_rows = graph("Reshape", graph("Tile", "query_positions", group), graph.whole(1, -1, 1))

    # attention weights, (n_head_kv, G W, n)
    grouped = graph("Reshape", "queries", graph("Concat", n_head_kv, graph.whole(-1), d, axis=0))
    factor = graph("Reciprocal", graph("Sqrt", graph.to(d, "FLOAT"))) if scale is None else graph.constant(scale)
    logits = graph("MatMul", graph("Mul", grouped, factor), graph("Transpose", "keys", perm=[0, 2, 1]))
    if softcap:
        cap = graph.constant(softcap)
        logits = graph("Mul", graph("Tanh", graph("Div", logits, cap)), cap)
    seen = graph("LessOrEqual", graph("Unsqueeze", "positions", one), all_rows)
    masked = graph("Where", seen, logits, graph.constant(LOWEST))
    if sinks:  # one more cell, whose weight goes nowhere
        of_heads = graph("Reshape", "sinks", graph.whole(-1, 1))
        n_rows = graph("Concat", one, graph.size("query_positions", 0), axis=0)
        of_rows = graph(
            "Reshape", graph("Expand", of_heads, n_rows), graph("Concat", n_head_kv, graph.whole(-1, 1), axis=0)
        )
        masked = graph("Concat", masked, of_rows, axis=-1)
    weights = graph("Softmax", masked, axis=-1)
    if sinks:
        weights = graph("Slice", weights, zero, graph.whole(-1), graph.whole(2))

    # mean over the rows; a row that sees no cell, not even the first, counts as zeros
    sees = graph("LessOrEqual", graph("Unsqueeze", graph("Slice", "positions", zero, one, one), one), all_rows)
    shares = graph(
        "Transpose", graph("Div", graph.to(sees, "FLOAT"), graph.to(graph.size(all_rows, 1), "FLOAT")), perm=[0, 2, 1]
    )
    scores = graph("Squeeze", graph("MatMul", shares, weights), one)
    # A key that is not finite must give no finite score: the softmax of -inf would be a silent 0.
    spoiled = graph("Mul", graph("ReduceSum", logits, graph.whole(1, 2), keepdims=0), graph.constant(0.0))
    scores = graph("Add", scores, graph("Unsqueeze", spoiled, one))

    # The window's own cells take no part in pooling.
    before = graph("Less", "positions", graph("Slice", "query_positions", zero, one))
    pooled = _pooled(graph, scores, policy.kernel, policy.pool, before)
    graph("Where", before, pooled, scores, output=OUTPUT)
    return graph


def _pooled(graph: _Graph, scores: str, kernel: int, pool: str, of: str | None = None) -> str:
    """Scores (n_head_kv, n) pooled over neighbouring cells, of the cells `of` alone if given; edges padded."""
    if kernel == 1:
        return scores
    axis = graph.whole(1)

    def over(name: str, kind: str, **attributes: Any) -> str:
        line = graph("Unsqueeze", name, axis)
        sides = [kernel // 2, kernel // 2]
        return graph("Squeeze", graph(kind, line, kernel_shape=[kernel], pads=sides, **attributes), axis)

    if pool == "max":
        line = scores if of is None else graph("Where", of, scores, graph.constant(LOWEST))
        spoiled = graph("Mul", scores, graph.constant(0.0))  # A maximum would hide values that are not finite.
        return graph("Add", over(line, "MaxPool"), spoiled)
    if of is None:
        return over(scores, "AveragePool", count_include_pad=0)
    part = over(graph("Where", of, scores, graph.constant(0.0)), "AveragePool", count_include_pad=1)
    whole = over(graph.to(of, "FLOAT"), "AveragePool", count_include_pad=1)
    return graph("Div", part, whole)  # 0 / 0 lies outside `of`, and there the caller takes its own scores
