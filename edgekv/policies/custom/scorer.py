"""Custom scorers: a function of the user's own that scores the heads of a layer, and the policy made of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.errors import ConfigError, NativeError, PolicyError
from edgekv.memory import process
from edgekv.policies.base import Policy
from edgekv.policies.head import Head, largest_of_parts
from edgekv.policies.types import Scores

READS = ("keys", "values", "queries", "positions")
ARGUMENTS = (*READS, "query_positions", "sinks")
MAX_ROWS = 4096
SCRATCH_FACTOR = 4  # default bound: a scorer allocates at most this many times the size of its arguments

ScratchBytes = Callable[[int, int, int, int, int], int]


@dataclass(frozen=True, eq=False)
class Scorer:
    """A function that scores cells, the arrays that it reads, and its promises.

    function: scores every cell of the KV heads that it is given. It is called with these keyword arguments, as far as
        `reads`, `places`, `heads` and `sinks` name them:

            keys             (n_head_kv, n, d)    float32, post-RoPE
            values           (n_head_kv, n, d_v)  float32
            queries          (n_head, W, d)       float32, post-RoPE; the W <= n_rows tokens fed last, or those of a
                                                  probe. If this has parts, each comes in a call of its own
            positions        (n_head_kv, n)       int32
            query_positions  (W,)                 int32; those of a probe come after all cells
            sinks            (n_head,)            float32, logits of learnt sinks; None if the model has none
            first_head       the number of the first KV head in its layer

        It returns scores (n_head_kv, n) in float32; other floats are converted. Higher is kept. Cells and rows are in
        ascending order of position. Arrays are read-only and belong to edgekv; the call must copy what it keeps. Heads
        that hold different numbers of cells come in separate calls, so one head's scores must not depend on another's.
    reads: which of keys, values, queries and positions it is given
    n_rows: the most rows of queries that it is given; 0 if it reads no queries
    weights: its scores are never negative, as attention weights are; wrappers take a softmax of other scores
    recent: number of newest cells that it protects
    places: it is given query_positions
    heads: it is given first_head
    sinks: it is given sinks
    scratch: a function of (n_cells, n_head_kv, n_head, head_dim_k, head_dim_v) that returns the most bytes that a call
        needs beside its arguments; None = 4 times its arguments, with attention logits (n_head, W, n) counted as one
        of them if it reads queries
    """

    name: str
    function: Callable[..., Any]
    reads: frozenset[str]
    n_rows: int = 0
    weights: bool = False
    summary: str = ""
    recent: int = 0
    places: bool = False
    heads: bool = False
    sinks: bool = False
    scratch: ScratchBytes | None = None

    @classmethod
    def of(
        cls,
        name: str,
        function: Callable[..., Any],
        *,
        summary: str = "",
        weights: bool = False,
        rows: int = 32,
        scratch_bytes: ScratchBytes | None = None,
    ) -> Scorer:
        """Make a scorer of a function. Its parameters name the arrays that it reads.

        Parameters may be any of keys, values, queries, positions, query_positions and sinks. Raises PolicyError for
        other parameters and for values that cannot work.

        rows: the most rows of queries that it is given, if it reads queries
        scratch_bytes: see `scratch`
        """
        reads = _parameters(name, function)
        if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MAX_ROWS:
            raise PolicyError(f"scorer {name}: rows={rows!r} is not possible; give a whole number in [1, {MAX_ROWS}]")
        if scratch_bytes is not None and not callable(scratch_bytes):
            raise PolicyError(
                f"scorer {name}: scratch_bytes={scratch_bytes!r} is not callable; "
                "give a function of (n_cells, n_head_kv, n_head, head_dim_k, head_dim_v)"
            )
        return cls(
            name=name,
            function=function,
            reads=reads & set(READS),
            places="query_positions" in reads,
            sinks="sinks" in reads,
            n_rows=rows if "queries" in reads else 0,
            weights=bool(weights),
            summary=summary,
            scratch=scratch_bytes,
        )

    def __call__(
        self,
        *,
        keys: npt.NDArray[Any] | None = None,
        values: npt.NDArray[Any] | None = None,
        queries: npt.NDArray[Any] | None = None,
        positions: npt.NDArray[Any] | None = None,
        query_positions: npt.NDArray[Any] | None = None,
        sinks: npt.NDArray[Any] | None = None,
        first_head: int = 0,
    ) -> npt.NDArray[np.float32]:
        """Call the function and check its scores; returns (n_head_kv, n) float32, contiguous.

        Arrays that it does not read may be left out. Without query_positions, the rows are taken to be those of the
        newest W positions. first_head: the number of the first KV head in its layer.

        Raises ConfigError if an array that it reads is missing, PolicyError if it raises or returns anything but
        scores, and NativeError for a score that is not finite.
        """
        given = {"keys": keys, "values": values, "queries": queries, "positions": positions}
        if self.places:
            given["query_positions"] = _newest(queries, positions) if query_positions is None else query_positions
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, array in given.items():
            if name in READS and name not in self.reads:
                continue
            if array is None:
                raise ConfigError(f"{self.name} reads {name}; give {name}=")
            arrays[name] = _read_only(array)
        shape = next(arrays[name].shape[:2] for name in ("keys", "values", "positions") if name in arrays)
        more: dict[str, Any] = {"first_head": first_head} if self.heads else {}
        if self.sinks:
            more["sinks"] = None if sinks is None else _read_only(sinks)
        # Memory that earlier calls freed goes back to the system, so that this call adds no more than it allocates.
        process.return_freed_memory()
        try:
            scores = np.asarray(self.function(**arrays, **more))
        except Exception as error:
            raise PolicyError(f"scorer {self.name} failed: {type(error).__name__}: {error}") from error
        return self._checked(scores, shape, positions, first_head)

    def _checked(
        self, scores: npt.NDArray[Any], shape: tuple[int, ...], positions: npt.NDArray[Any] | None, first_head: int
    ) -> npt.NDArray[np.float32]:
        if scores.dtype.kind != "f":
            raise PolicyError(
                f"scorer {self.name} returned {scores.dtype}; return float32, as in scores.astype(np.float32)"
            )
        if scores.shape != shape:
            raise PolicyError(f"scorer {self.name} returned shape {scores.shape}; return (n_head_kv, n), here {shape}")
        with np.errstate(over="ignore"):
            scores = np.ascontiguousarray(scores, dtype=np.float32)
        finite = np.isfinite(scores)
        if not finite.all():
            head, cell = np.unravel_index(np.argmin(finite), shape)
            where = f"cell {cell}" if positions is None else f"position {positions[head, cell]}"
            raise NativeError(
                f"scorer {self.name} gave {where} of KV head {first_head + head} the score {scores[head, cell]}; "
                "scores must be finite, so either it divides by zero or the arrays hold NaN or infinity"
            )
        if self.weights and scores.size and scores.min() < 0:
            raise PolicyError(
                f"scorer {self.name} says weights=True, but gave {scores.min()}; weights are never negative"
            )
        return scores

    def scratch_bytes(self, n_cells: int, n_head_kv: int, n_head: int, head_dim_k: int, head_dim_v: int) -> int:
        """Return the most bytes of a call beside its arguments. Raises PolicyError if `scratch` gives no number."""
        if self.scratch is None:
            sizes = {
                "keys": n_head_kv * n_cells * head_dim_k,
                "values": n_head_kv * n_cells * head_dim_v,
                "queries": n_head * self.n_rows * (head_dim_k + n_cells),
                "positions": n_head_kv * n_cells,
            }
            return SCRATCH_FACTOR * sum(4 * sizes[name] for name in self.reads)
        try:
            n_bytes = self.scratch(n_cells, n_head_kv, n_head, head_dim_k, head_dim_v)
            if n_bytes >= 0 and math.isfinite(n_bytes):
                return math.ceil(n_bytes)
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(f"scratch_bytes of scorer {self.name} failed: {type(error).__name__}: {error}") from error
        raise PolicyError(f"scratch_bytes of scorer {self.name} returned {n_bytes!r}; return a number of bytes")


@dataclass(frozen=True)
class Custom(Policy):
    """A custom scorer as a policy.

    score(c) = the scorer's number for c

    The native library calls the scorer once for all KV heads of a layer that hold equally many cells. The reference
    calls it for one head at a time.
    """

    paper = "custom"
    native_base = 8

    scorer: Scorer

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.scorer.name

    @property
    def summary(self) -> str:  # type: ignore[override]
        return self.scorer.summary

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        return self.scorer.reads & {"values", "queries"}

    @property
    def weights(self) -> bool:  # type: ignore[override]
        return self.scorer.weights

    @largest_of_parts
    def score(self, head: Head) -> Scores:
        scores = np.empty(len(head.positions))
        if not len(scores):
            return scores
        order = head.order
        arrays: dict[str, npt.NDArray[Any]] = {"positions": head.positions[order][None]}
        for name in self.scorer.reads & {"keys", "values"}:
            if (array := getattr(head, name)) is not None:
                arrays[name] = np.ascontiguousarray(array[order][None], dtype=np.float32)
        if "queries" in self.scorer.reads:
            queries, rows = head.newest_rows(self.scorer.n_rows).rows()
            arrays |= {"queries": np.ascontiguousarray(queries, dtype=np.float32), "query_positions": rows}
            if head.sinks is not None:
                arrays["sinks"] = np.asarray(head.sinks, dtype=np.float32)
        scores[order] = self.scorer(**arrays, first_head=head.head)[0]
        return scores

    def recent(self, budget: int) -> int:
        return self.scorer.recent

    def n_rows(self, block: int) -> int:
        return self.scorer.n_rows

    def scratch_bytes(self, n_cells: int, n_head_kv: int, n_head: int, head_dim_k: int, head_dim_v: int) -> int:
        return self.scorer.scratch_bytes(n_cells, n_head_kv, n_head, head_dim_k, head_dim_v)

    def native_fields(self) -> dict[str, Any]:
        return super().native_fields() | {"rows": self.scorer.n_rows}

    @property
    def spec(self) -> str:
        return self.scorer.name


def _parameters(name: str, function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the arrays that a function reads. Raises PolicyError for names that are not possible."""
    possible = ", ".join(ARGUMENTS)
    if not callable(function) or isinstance(function, (type, Scorer)):
        raise PolicyError(f"scorer {name}: {function!r} is no function; give one whose parameters are among {possible}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise PolicyError(
            f"scorer {name}: {function!r} does not say its parameters; wrap it in a function of some of {possible}"
        ) from error
    unnamed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for parameter in parameters:
        if parameter.name not in ARGUMENTS or parameter.kind in unnamed:
            raise PolicyError(f"scorer {name} has the parameter {parameter}; possible by name: {possible}")
    reads = frozenset(parameter.name for parameter in parameters)
    check_arguments(f"scorer {name}", reads)
    return reads


def check_arguments(who: str, names: frozenset[str]) -> None:
    """Raise PolicyError for names of arrays that no scorer can work with."""
    if not names & {"keys", "values", "positions"}:
        raise PolicyError(f"{who} reads no cells; let it take keys, values or positions")
    for name in ("query_positions", "sinks"):
        if name in names and "queries" not in names:
            raise PolicyError(f"{who} takes {name} without queries; let it take both")


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view: npt.NDArray[Any] = array.view()
    view.flags.writeable = False
    return view


def _newest(queries: npt.NDArray[Any] | None, positions: npt.NDArray[Any] | None) -> npt.NDArray[np.int32] | None:
    """Return the newest W positions, ascending, (W,)."""
    if queries is None or positions is None:
        return None
    last = int(positions.max(initial=-1))
    return np.arange(last + 1 - queries.shape[1], last + 1, dtype=np.int32)
