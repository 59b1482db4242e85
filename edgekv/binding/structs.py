"""The structs of the headers in `native/include`, as ctypes sees them, but for those of a plan (`plan_structs`)."""

from __future__ import annotations

import ctypes as c
from typing import Any


class Struct(c.Structure):
    @classmethod
    def c_name(cls) -> str:
        """Return the name of the struct in C, without the keyword."""
        return str(cls.__doc__).removeprefix("struct ")

    def as_dict(self) -> dict[str, int]:
        """The fields by name."""
        return {field[0]: getattr(self, field[0]) for field in self._fields_}


class Input(Struct):
    """A struct that the library is given. It begins with its size, `n_bytes`, which is set when it is made."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(c.sizeof(self), *values, **named)


SIZE = ("n_bytes", c.c_uint32)
F32, F16 = 0, 1  # enum ggml_type


def members(kind: Any, names: str) -> tuple[tuple[str, Any], ...]:
    """Return members of one type. names: between spaces, in their order"""
    return tuple((name, kind) for name in names.split())


def _address(array: Any) -> int | None:
    """Return the address of an array's data, which must be contiguous."""
    return None if array is None else int(array.ctypes.data)


class Layout(Input):
    """struct edgekv_layout"""

    _fields_ = members(c.c_uint32, "n_bytes n_cells n_cells_max n_probe n_slots")


HEAD_LIMIT = 8  # EDGEKV_HEAD_LIMIT: times the budget that one head may keep at most, if heads differ


class Shape(Struct):
    """struct edgekv_shape"""

    _fields_ = (
        *members(
            c.c_uint32,
            "n_layer n_head_total n_head_kv_max n_head_max n_group_max head_dim_k head_dim_v n_cells "
            "n_cells_max n_threads staged w_o_row_bytes",
        ),
        *members(
            c.c_uint64, "cell_bytes head_bytes query_row_bytes device_query_row_bytes state_bytes device_state_bytes"
        ),
        *members(c.c_uint32, "window_cells latent_dim_v"),
        *members(c.c_uint64, "graph_bytes device_graph_bytes graph_description_bytes n_exact"),
    )


class Memory(Struct):
    """struct edgekv_memory"""

    _fields_ = members(
        c.c_uint64, "weight_bytes repack_bytes kv_bytes state_bytes compute_bytes output_bytes device_bytes"
    )


class DeviceShare(Struct):
    """struct edgekv_device_usage"""

    _fields_ = (
        ("name", c.c_char * 64),
        *members(c.c_uint32, "n_layers has_output"),
        *members(c.c_uint64, "weight_bytes kv_bytes compute_bytes scoring_bytes"),
        *members(c.c_uint64, "state_bytes serving_bytes context_bytes"),
    )


class Policy(Input):
    """struct edgekv_policy"""

    _fields_ = (
        SIZE,
        *members(c.c_int32, "base anchor metric pool"),
        *members(c.c_uint32, "kernel rows"),
        ("seed", c.c_uint64),
        ("flags", c.c_uint32),
        *members(c.c_int32, "softmax weigh"),
        ("critical", c.c_int32),
        *members(c.c_double, "alpha epsilon"),
        *members(c.c_int32, "aggregate pool_rows spread"),
        *members(c.c_double, "safeguard pyramid"),
        ("scorer", c.c_void_p),
    )


class Rows(Input):
    """struct edgekv_rows"""

    _fields_ = (
        SIZE,
        ("type", c.c_int32),
        ("data", c.c_void_p),
        *members(c.c_uint64, "n stride_bytes"),
        *members(c.c_uint32, "dim rotation"),
    )


class Protection(Input):
    """struct edgekv_protection"""

    _fields_ = (
        *members(c.c_uint32, "n_bytes n_sink n_recent"),
        ("pinned", c.POINTER(c.c_int32)),
        ("n_pinned", c.c_size_t),
    )

    @classmethod
    def of(cls, n_sink: int, n_recent: int, pinned: tuple[tuple[int, int], ...]) -> Protection:
        flat = [p for pair in pinned for p in pair]
        return cls(n_sink, n_recent, (c.c_int32 * len(flat))(*flat), len(pinned))


class Cells(Input):
    """struct edgekv_cells"""

    _fields_ = (
        SIZE,
        *members(c.POINTER(Rows), "keys values"),
        *members(c.c_void_p, "positions accumulated wo_norm"),
        *members(c.c_uint32, "layer head"),
    )

    @classmethod
    def of(
        cls, keys: Rows, values: Rows | None, positions: Any, accumulated: Any, wo_norm: Any, layer: int, head: int
    ) -> Cells:
        """Return the struct over numpy arrays, which it keeps alive."""
        arrays = (positions, accumulated, wo_norm)
        cells = cls(
            c.pointer(keys), c.pointer(values) if values is not None else None, *map(_address, arrays), layer, head
        )
        cells._arrays = arrays
        return cells


class Queries(Input):
    """struct edgekv_queries"""

    _fields_ = (
        SIZE,
        *members(c.c_void_p, "data positions"),
        *members(c.c_uint32, "n_head n_rows dim"),
        ("n_seen", c.c_int32),
        *members(c.c_float, "scale softcap"),
        ("sinks", c.c_void_p),
    )

    @classmethod
    def of(cls, rows: Any, positions: Any, scale: float, softcap: float, n_seen: int, sinks: Any = None) -> Queries:
        """Return the struct over arrays (n_head, n_rows, dim), (n_rows,) and (n_head,) or None; it keeps them alive."""
        n_head, n_rows, dim = rows.shape
        queries = cls(_address(rows), _address(positions), n_head, n_rows, dim, n_seen, scale, softcap, _address(sinks))
        queries._arrays = (rows, positions, sinks)
        return queries


class Scored(Input):
    """struct edgekv_scored"""

    _fields_ = (SIZE, *members(c.c_void_p, "scores positions"), ("n", c.c_size_t))

    @classmethod
    def of(cls, scores: Any, positions: Any) -> Scored:
        """Return the struct over numpy arrays (n,), float32 and int32, which must live while the library uses them."""
        return cls(_address(scores), _address(positions), len(scores))


class LayerView(Struct):
    """struct edgekv_layer_view"""

    _fields_ = (
        *members(c.c_uint32, "layer n_head_kv n_head n n_rows head_dim_k head_dim_v first_head_kv"),
        *members(c.c_void_p, "keys values queries positions query_positions sinks"),
    )


ScoreLayer = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(LayerView), c.c_void_p)


class Scorer(Input):
    """struct edgekv_scorer"""

    _fields_ = (SIZE, ("score", ScoreLayer), ("user_data", c.c_void_p), *members(c.c_uint32, "reads n_rows"))


class CacheParams(Input):
    """struct edgekv_cache_params"""

    _fields_ = (
        *members(c.c_uint32, "n_bytes n_query_rows n_probe_rows"),
        *members(c.c_int32, "accumulates wo_norms"),
        *members(c.c_uint32, "custom_reads ragged"),
        ("repositions", c.c_int32),
        ("n_draft", c.c_uint32),
        *members(c.c_int32, "values before_rope"),
        ("slot", c.c_uint32),
    )


class Part(Input):
    """struct edgekv_part"""

    _fields_ = (
        SIZE,
        ("cache", c.c_void_p),
        ("tokens", c.c_void_p),
        ("n", c.c_size_t),
        *members(c.c_int32, "want_logits logits_row"),
    )


class Streaming(Struct):
    """struct edgekv_streaming"""

    _fields_ = (
        *members(c.c_uint32, "n_layers n_streamed n_experts n_experts_used"),
        *members(c.c_uint64, "streamed_bytes expert_bytes slot_bytes read_bytes read_ns wait_ns"),
    )


class CompactionParams(Input):
    """struct edgekv_compaction_params"""

    _fields_ = (
        SIZE,
        ("policy", c.POINTER(Policy)),
        ("protection", c.POINTER(Protection)),
        ("budget", c.c_uint32),
        *members(c.c_int32, "probed generating reposition"),
        ("budgets", c.POINTER(c.c_uint32)),
        *members(c.c_void_p, "n_beside beside n_within within"),
    )


class Compaction(Struct):
    """struct edgekv_compaction"""

    _fields_ = (
        ("n_evicted", c.c_uint64),
        *members(c.c_int64, "score_us move_us"),
        ("crossed_bytes", c.c_uint64),
        ("n_staged", c.c_uint32),
    )


class RecallParams(Input):
    """struct edgekv_recall_params"""

    _fields_ = members(c.c_uint32, "n_bytes n_cells n_rows before after n_sink with_rest n_needed")


class Recall(Struct):
    """struct edgekv_recall"""

    _fields_ = (("n_cells", c.c_uint32), ("n_scanned", c.c_uint64), *members(c.c_int64, "scan_us load_us"))


class SnapshotKind(Struct):
    """struct edgekv_snapshot_kind"""

    _fields_ = (
        *members(c.c_uint64, "cell_bytes query_row_bytes state_bytes"),
        *members(c.c_uint32, "n_layer n_heads head_dim_k head_dim_v"),
        *members(c.c_int32, "type_k type_v"),
        *members(c.c_uint32, "rotation_k rotation_v repositions accumulates wo_norms n_ring"),
    )


class Snapshot(Struct):
    """struct edgekv_snapshot"""

    _fields_ = (
        ("magic", c.c_char * 8),
        *members(c.c_uint64, "n_bytes rows_begin"),
        ("kind", SnapshotKind),
        *members(c.c_uint32, "version n_queries n_filled n_fresh"),
        *members(c.c_int32, "n_past rope_past normed"),
        ("ring_head", c.c_uint32),
    )


class ProductSpeed(Struct):
    """struct edgekv_product_speed"""

    _fields_ = (*members(c.c_double, "rate limit"), ("instructions", c.c_char * 16))
