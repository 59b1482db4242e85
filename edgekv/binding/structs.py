"""The structs of the headers in `native/include`, as ctypes sees them."""

from __future__ import annotations

import ctypes as c
from typing import Any


class Struct(c.Structure):
    def as_dict(self) -> dict[str, int]:
        """The fields by name."""
        return {field[0]: getattr(self, field[0]) for field in self._fields_}


def _address(array: Any) -> int | None:
    """Return the address of an array's data, which must be contiguous."""
    return None if array is None else int(array.ctypes.data)


class Layout(Struct):
    """struct edgekv_layout"""

    _fields_ = (("n_cells", c.c_uint32), ("n_cells_max", c.c_uint32), ("n_probe", c.c_uint32), ("n_slots", c.c_uint32))


HEAD_LIMIT = 3  # EDGEKV_HEAD_LIMIT: times the budget that one head may keep, if heads differ


class Shape(Struct):
    """struct edgekv_shape"""

    _fields_ = (
        ("n_layer", c.c_uint32),
        ("n_head_total", c.c_uint32),
        ("n_head_kv_max", c.c_uint32),
        ("n_head_max", c.c_uint32),
        ("n_group_max", c.c_uint32),
        ("head_dim_k", c.c_uint32),
        ("head_dim_v", c.c_uint32),
        ("n_cells", c.c_uint32),
        ("n_cells_max", c.c_uint32),
        ("n_threads", c.c_uint32),
        ("staged", c.c_uint32),
        ("w_o_row_bytes", c.c_uint32),
        ("cell_bytes", c.c_uint64),
        ("head_bytes", c.c_uint64),
        ("query_row_bytes", c.c_uint64),
        ("device_query_row_bytes", c.c_uint64),
        ("state_bytes", c.c_uint64),
        ("device_state_bytes", c.c_uint64),
        ("window_cells", c.c_uint32),
        ("latent_dim_v", c.c_uint32),
        ("graph_bytes", c.c_uint64),
        ("device_graph_bytes", c.c_uint64),
    )


class Memory(Struct):
    """struct edgekv_memory"""

    _fields_ = tuple(
        (name, c.c_uint64)
        for name in (
            "weight_bytes",
            "repack_bytes",
            "kv_bytes",
            "state_bytes",
            "compute_bytes",
            "output_bytes",
            "device_bytes",
        )
    )


class DeviceShare(Struct):
    """struct edgekv_device_usage"""

    _fields_ = (
        ("name", c.c_char * 64),
        ("n_layers", c.c_uint32),
        ("has_output", c.c_uint32),
        *((name, c.c_uint64) for name in ("weight_bytes", "kv_bytes", "compute_bytes", "scoring_bytes", "state_bytes")),
    )


class Policy(Struct):
    """struct edgekv_policy"""

    _fields_ = (
        ("base", c.c_int32),
        ("anchor", c.c_int32),
        ("metric", c.c_int32),
        ("pool", c.c_int32),
        ("kernel", c.c_uint32),
        ("rows", c.c_uint32),
        ("seed", c.c_uint64),
        ("flags", c.c_uint32),
        ("softmax", c.c_int32),
        ("weigh", c.c_int32),
        ("rounds", c.c_uint32),
        ("critical", c.c_int32),
        ("alpha", c.c_double),
        ("mass", c.c_double),
        ("epsilon", c.c_double),
        ("carry", c.c_double),
        ("aggregate", c.c_int32),
        ("pool_rows", c.c_int32),
        ("spread", c.c_int32),
        ("safeguard", c.c_double),
        ("pyramid", c.c_double),
        ("scorer", c.c_void_p),
        ("n_ahead", c.c_uint32),
    )


class Rows(Struct):
    """struct edgekv_rows"""

    _fields_ = (
        ("data", c.c_void_p),
        ("type", c.c_int32),
        ("dim", c.c_uint32),
        ("n", c.c_uint64),
        ("stride_bytes", c.c_uint64),
        ("rotation", c.c_uint32),
        ("reserved", c.c_uint32),
    )


class Protection(Struct):
    """struct edgekv_protection"""

    _fields_ = (
        ("n_sink", c.c_uint32),
        ("n_recent", c.c_uint32),
        ("pinned", c.POINTER(c.c_int32)),
        ("n_pinned", c.c_size_t),
    )

    @classmethod
    def of(cls, n_sink: int, n_recent: int, pinned: tuple[tuple[int, int], ...]) -> Protection:
        flat = [p for pair in pinned for p in pair]
        return cls(n_sink, n_recent, (c.c_int32 * len(flat))(*flat), len(pinned))


class Cells(Struct):
    """struct edgekv_cells"""

    _fields_ = (
        ("keys", c.POINTER(Rows)),
        ("values", c.POINTER(Rows)),
        ("positions", c.c_void_p),
        ("accumulated", c.c_void_p),
        ("wo_norm", c.c_void_p),
        ("layer", c.c_uint32),
        ("head", c.c_uint32),
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


class Queries(Struct):
    """struct edgekv_queries"""

    _fields_ = (
        ("data", c.c_void_p),
        ("positions", c.c_void_p),
        ("n_head", c.c_uint32),
        ("n_rows", c.c_uint32),
        ("dim", c.c_uint32),
        ("n_seen", c.c_int32),
        ("scale", c.c_float),
        ("softcap", c.c_float),
        ("sinks", c.c_void_p),
    )

    @classmethod
    def of(cls, rows: Any, positions: Any, scale: float, softcap: float, n_seen: int, sinks: Any = None) -> Queries:
        """Return the struct over arrays (n_head, n_rows, dim), (n_rows,) and (n_head,) or None; it keeps them alive."""
        n_head, n_rows, dim = rows.shape
        queries = cls(_address(rows), _address(positions), n_head, n_rows, dim, n_seen, scale, softcap, _address(sinks))
        queries._arrays = (rows, positions, sinks)
        return queries


class Scored(Struct):
    """struct edgekv_scored"""

    _fields_ = (("scores", c.c_void_p), ("positions", c.c_void_p), ("n", c.c_size_t))

    @classmethod
    def of(cls, scores: Any, positions: Any) -> Scored:
        """Return the struct over numpy arrays (n,), float32 and int32, which must live while the library uses them."""
        return cls(_address(scores), _address(positions), len(scores))


class LayerView(Struct):
    """struct edgekv_layer_view"""

    _fields_ = (
        *((name, c.c_uint32) for name in ("layer", "n_head_kv", "n_head", "n", "n_rows")),
        *((name, c.c_uint32) for name in ("head_dim_k", "head_dim_v", "first_head_kv")),
        *((name, c.c_void_p) for name in ("keys", "values", "queries", "positions", "query_positions", "sinks")),
    )


ScoreLayer = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(LayerView), c.c_void_p)


class Scorer(Struct):
    """struct edgekv_scorer"""

    _fields_ = (("score", ScoreLayer), ("user_data", c.c_void_p), ("reads", c.c_uint32), ("n_rows", c.c_uint32))


STAGING = {"auto": 0, "copies": 1, "graphs": 2}  # enum edgekv_staging


class CacheParams(Struct):
    """struct edgekv_cache_params"""

    _fields_ = (
        ("staged", c.c_int32),
        ("n_query_rows", c.c_uint32),
        ("n_probe_rows", c.c_uint32),
        ("accumulates", c.c_int32),
        ("wo_norms", c.c_int32),
        ("custom_reads", c.c_uint32),
        ("ragged", c.c_uint32),
        ("repositions", c.c_int32),
        ("n_draft", c.c_uint32),
        ("values", c.c_int32),
        ("before_rope", c.c_int32),
        ("slot", c.c_uint32),
    )


class Part(Struct):
    """struct edgekv_part"""

    _fields_ = (
        ("cache", c.c_void_p),
        ("tokens", c.c_void_p),
        ("n", c.c_size_t),
        ("want_logits", c.c_int32),
        ("logits_row", c.c_int32),
    )


class Parts(Struct):
    """struct edgekv_parts"""

    _fields_ = tuple(
        (f"{name}_bytes", c.c_uint64)
        for name in (
            *(
                "host",
                "vocabulary",
                "graph",
                "rounding",
                "weight",
                "repack",
                "slot",
                "kv",
                "state",
                "compute",
                "output",
            ),
            *("workspace", "bookkeeping", "reserved", "margin"),
        )
    )


class Streaming(Struct):
    """struct edgekv_streaming"""

    _fields_ = (
        *((name, c.c_uint32) for name in ("n_layers", "n_streamed", "n_experts", "n_experts_used")),
        *((name, c.c_uint64) for name in ("streamed_bytes", "expert_bytes", "slot_bytes")),
        *((name, c.c_uint64) for name in ("read_bytes", "read_ns", "wait_ns")),
    )


class Setting(Struct):
    """struct edgekv_setting"""

    _fields_ = (
        ("budget", c.c_uint32),
        ("block", c.c_uint32),
        ("kv_type", c.c_int32),
        ("repack", c.c_int32),
        ("n_streamed", c.c_uint32),
    )


Work = c.CFUNCTYPE(c.c_int32, c.c_void_p)
SettingFits = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(Setting))


class Choice(Struct):
    """struct edgekv_choice"""

    _fields_ = (
        ("budget", c.c_uint32),
        ("least_budget", c.c_uint32),
        ("block", c.c_uint32),
        ("least_block", c.c_uint32),
        ("kv_type", c.c_int32),
        ("repack", c.c_int32),
        ("n_streamed", c.c_int32),
        ("n_layers", c.c_uint32),
        ("n_probe", c.c_uint32),
        ("n_ctx_train", c.c_uint32),
        ("ragged", c.c_int32),
        ("repositions", c.c_int32),
    )


class PlanRequest(Struct):
    """struct edgekv_plan_request"""

    _fields_ = (
        ("ceiling_bytes", c.c_uint64),
        ("reserved_bytes", c.c_uint64),
        ("policy", Policy),
        ("probe_policy", Policy),
        ("n_probe", c.c_uint32),
        ("n_sink", c.c_uint32),
        ("n_recent", c.c_uint32),
        ("budget", c.c_uint32),
        ("block", c.c_uint32),
        ("kv_type", c.c_int32),
        ("repack", c.c_int32),
        ("n_streamed", c.c_int32),
        ("n_threads", c.c_uint32),
        ("repositions", c.c_int32),
    )


class Plan(Struct):
    """struct edgekv_plan"""

    _fields_ = (
        *((name, c.c_uint64) for name in ("ceiling_bytes", "peak_bytes", "cell_bytes")),
        ("parts", Parts),
        ("probe_policy", Policy),
        ("setting", Setting),
        ("layout", Layout),
        ("cache", CacheParams),
        *((name, c.c_uint32) for name in ("n_ubatch", "n_threads", "n_ctx_train", "n_tokens_max")),
    )


class CompactionParams(Struct):
    """struct edgekv_compaction_params"""

    _fields_ = (
        ("policy", c.POINTER(Policy)),
        ("protection", c.POINTER(Protection)),
        ("budget", c.c_uint32),
        ("probed", c.c_int32),
        ("generating", c.c_int32),
        ("budgets", c.POINTER(c.c_uint32)),
        ("reposition", c.c_int32),
        ("shares", c.POINTER(c.c_float)),
    )


class Compaction(Struct):
    """struct edgekv_compaction"""

    _fields_ = (
        ("n_evicted", c.c_uint64),
        ("score_us", c.c_int64),
        ("move_us", c.c_int64),
        ("crossed_bytes", c.c_uint64),
        ("n_staged", c.c_uint32),
    )


class SnapshotKind(Struct):
    """struct edgekv_snapshot_kind"""

    _fields_ = (
        *((name, c.c_uint64) for name in ("cell_bytes", "query_row_bytes", "state_bytes")),
        *((name, c.c_uint32) for name in ("n_layer", "n_heads", "head_dim_k", "head_dim_v")),
        *((name, c.c_int32) for name in ("type_k", "type_v")),
        *((name, c.c_uint32) for name in ("rotation_k", "rotation_v")),
        *((name, c.c_uint32) for name in ("repositions", "accumulates", "wo_norms", "n_ring")),
    )


class Snapshot(Struct):
    """struct edgekv_snapshot"""

    _fields_ = (
        ("magic", c.c_char * 8),
        *((name, c.c_uint64) for name in ("n_bytes", "rows_begin")),
        ("kind", SnapshotKind),
        *((name, c.c_uint32) for name in ("version", "n_queries", "n_filled", "n_fresh", "divided")),
        *((name, c.c_int32) for name in ("n_past", "rope_past", "normed")),
        *((name, c.c_uint32) for name in ("ring_head", "reserved")),
    )


class ProductSpeed(Struct):
    """struct edgekv_product_speed"""

    _fields_ = (("rate", c.c_double), ("limit", c.c_double), ("instructions", c.c_char * 16))
