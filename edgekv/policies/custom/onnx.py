"""Scorers as ONNX graphs, run by onnxruntime: `onnx:PATH.onnx`.

onnxruntime and onnx are imported when a graph is loaded, never before. The graph then runs once on small random data.
So everything that they hold is in memory before a plan measures the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekv.errors import EdgeKVError, PolicyError
from edgekv.memory.sizes import MIB
from edgekv.policies.base import check_options, option

from .graph_memory import scratch_bytes
from .ort import new_session, required
from .scorer import ARGUMENTS, MAX_ROWS, READS, Custom, Scorer, check_arguments

# input -> names of its dimensions; those in FREE must be dynamic
DIMENSIONS = {
    "keys": ("n_head_kv", "n", "d"),
    "values": ("n_head_kv", "n", "d_v"),
    "queries": ("n_head", "W", "d"),
    "positions": ("n_head_kv", "n"),
    "query_positions": ("W",),
    "sinks": ("n_head",),
}
FREE = frozenset({"n_head_kv", "n_head", "n", "W"})
POSITIONS = ("positions", "query_positions")
OUTPUT = "scores"

# Keys of a graph's metadata.
WINDOW_KEY = "edgekv.window"  # rows of queries that it wants
WEIGHTS_KEY = "edgekv.weights"  # "true": its scores are never negative
PROTECT_KEY = "edgekv.protect_window"  # "true": the newest cells, as many as it wants rows, are protected

DEFAULT_WINDOW = 32


@dataclass(frozen=True)
class GraphOptions:
    """Options in parentheses after `onnx:PATH.onnx`. Raises PolicyError for a value that is not possible."""

    window: int | None = option(
        None,
        "newest tokens whose queries it is given; default: what the graph says, or 32",
        minimum=1,
        maximum=MAX_ROWS,
    )
    weights: bool = option(False, "its scores are never negative, even if the graph does not say so")
    scratch: float | None = option(
        None, "MiB it needs beside its inputs, for graphs where edgekv cannot tell", minimum=0
    )

    def __post_init__(self) -> None:
        check_options("onnx:PATH.onnx", self, dataclasses.fields(self))

    def spec(self, path: str) -> str:
        """Return the shortest spelling of a graph with these options."""
        fields = dataclasses.fields(self)
        given = [f"{f.name}={getattr(self, f.name)}" for f in fields if getattr(self, f.name) != f.default]
        return f"onnx:{path}({', '.join(given)})" if given else f"onnx:{path}"


def load_graph(path: str, options: GraphOptions | None = None) -> Custom:
    """Make a policy of an ONNX graph.

    Its inputs are any of keys, values, queries, sinks (float32), positions and query_positions (int32 or int64), as for
    `Scorer`; its one output is `scores` (n_head_kv, n) float32. Only the number of elements of a key or value may be
    fixed. The sinks of a model without any are -inf, which a softmax gives no share.

    Raises PolicyError if onnxruntime or onnx is not installed, the file is no such graph, or a trial run fails.
    """
    options = options or GraphOptions()
    name = options.spec(path)
    file = Path(path).expanduser()
    session = _session(file)
    inputs = {node.name: node for node in session.get_inputs()}
    fixed = _fixed_dimensions(path, inputs)
    _check_output(path, session)
    says = session.get_modelmeta().custom_metadata_map
    window = options.window or _window(path, says)
    if "queries" not in inputs and options.window:
        raise PolicyError(f"{name}: the graph takes no queries; leave window= out")
    rows = window if "queries" in inputs else 0
    scorer = Scorer(
        name=name,
        function=_runner(session, inputs),
        reads=frozenset(inputs) & set(READS),
        places="query_positions" in inputs,
        sinks="sinks" in inputs,
        n_rows=rows,
        weights=options.weights or says.get(WEIGHTS_KEY) == "true",
        summary=f"the ONNX graph {path}",
        recent=window if says.get(PROTECT_KEY) == "true" else 0,
        scratch=_scratch(name, file, inputs, fixed, rows, options.scratch),
    )
    _try(scorer, fixed)
    with contextlib.suppress(PolicyError):  # memory of the first call stays: make it before a plan
        scorer.scratch_bytes(1, 1, 1, fixed.get("d", 8), fixed.get("d_v", 8))
    return Custom(scorer)


def _session(file: Path) -> Any:
    """Load the graph of a file, ready to run. Raises PolicyError."""
    required("onnx")  # imported now, so that the plan measures its bytes
    required("onnxruntime")
    try:
        if not file.is_file():
            raise PolicyError(f"onnx:{file} is no file; give the path of an ONNX graph")
        return new_session(str(file))
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"onnx:{file} is not a graph that onnxruntime can run: {error}") from error


def _fixed_dimensions(path: str, inputs: dict[str, Any]) -> dict[str, int]:
    """Check the graph's inputs, and return the sizes of `d` and `d_v` that it fixes."""
    if not inputs or set(inputs) - set(ARGUMENTS):
        raise PolicyError(f"onnx:{path} takes {', '.join(inputs) or 'no inputs'}; possible: {', '.join(ARGUMENTS)}")
    check_arguments(f"onnx:{path}", frozenset(inputs))
    fixed: dict[str, int] = {}
    for name, node in inputs.items():
        possible = ["tensor(int32)", "tensor(int64)"] if name in POSITIONS else ["tensor(float)"]
        if node.type not in possible:
            raise PolicyError(f"onnx:{path} takes {name} as {node.type}; possible: {' or '.join(possible)}")
        labels = DIMENSIONS[name]
        if len(node.shape) != len(labels):
            raise PolicyError(f"onnx:{path} takes {name} of shape {node.shape}; give it ({', '.join(labels)})")
        for label, size in zip(labels, node.shape, strict=True):
            if not isinstance(size, int):
                continue
            if label in FREE:
                raise PolicyError(f"onnx:{path} fixes {label} of {name} at {size}; make that dimension dynamic")
            if fixed.setdefault(label, size) != size:
                raise PolicyError(
                    f"onnx:{path} wants {fixed[label]} and {size} elements of {label}; give it one number"
                )
    return fixed


def _check_output(path: str, session: Any) -> None:
    outputs = session.get_outputs()
    found = ", ".join(f"{node.name} {node.type} {node.shape}" for node in outputs)
    is_scores = len(outputs) == 1 and outputs[0].name == OUTPUT and outputs[0].type == "tensor(float)"
    if not is_scores or len(outputs[0].shape) not in (0, 2):  # 0 if the graph does not say; the trial run tells
        raise PolicyError(f"onnx:{path} returns {found}; one output is possible: {OUTPUT} tensor(float) (n_head_kv, n)")


def _window(path: str, says: dict[str, str]) -> int:
    text = says.get(WINDOW_KEY, str(DEFAULT_WINDOW))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_ROWS):
        raise PolicyError(f"onnx:{path} says {WINDOW_KEY}={text!r}; a whole number in [1, {MAX_ROWS}] is possible")
    return int(text)


def _runner(session: Any, inputs: dict[str, Any]) -> Callable[..., Any]:
    wide = [name for name, node in inputs.items() if node.type == "tensor(int64)"]

    def function(**arrays: Any) -> Any:
        arrays |= {name: arrays[name].astype(np.int64) for name in wide}
        if "sinks" in inputs and arrays["sinks"] is None:
            arrays["sinks"] = np.full(len(arrays["queries"]), -np.inf, dtype=np.float32)
        return session.run([OUTPUT], arrays)[0]

    return function


def _scratch(
    name: str, file: Path, inputs: dict[str, Any], fixed: dict[str, int], rows: int, mib: float | None
) -> Callable[[int, int, int, int, int], int]:
    """Return a function for the bytes that the graph needs beside its inputs, at any size."""

    def scratch(n_cells: int, n_head_kv: int, n_head: int, head_dim_k: int, head_dim_v: int) -> int:
        sizes = {"n": n_cells, "n_head_kv": n_head_kv, "n_head": n_head, "d": head_dim_k, "d_v": head_dim_v, "W": rows}
        for label, size in fixed.items():
            if sizes[label] != size:
                raise PolicyError(f"{name} wants {label}={size} elements; the model has {sizes[label]}")
        if mib is not None:
            return round(mib * MIB)
        shapes = {given: tuple(sizes[label] for label in DIMENSIONS[given]) for given in inputs}
        return scratch_bytes(name, file, shapes)

    return scratch


def _try(scorer: Scorer, fixed: dict[str, int]) -> None:
    """Run the scorer on random data of two sizes, one with grouped query heads. Raises PolicyError."""
    rng = np.random.default_rng(0)
    for n_head_kv, n_head, rows in ((2, 4, scorer.n_rows), (1, 3, 1)):
        n = 2 * rows + 256
        sizes = {"n_head_kv": n_head_kv, "n_head": n_head, "n": n, "W": rows, "d": 8, "d_v": 8} | fixed
        shapes = {name: tuple(sizes[label] for label in labels) for name, labels in DIMENSIONS.items()}
        arrays: dict[str, Any] = {
            name: rng.standard_normal(shapes[name], dtype=np.float32) for name in ("keys", "values", "queries")
        }
        gaps = rng.integers(1, 4, shapes["positions"])
        arrays["positions"] = np.cumsum(gaps, axis=1, dtype=np.int32)
        if n_head_kv > 1:  # the other trial has a model without sinks
            arrays["sinks"] = rng.standard_normal(shapes["sinks"], dtype=np.float32)
        try:
            scorer(**arrays)
        except EdgeKVError as error:
            raise PolicyError(f"{scorer.name} failed its trial run on random data: {error}") from error
