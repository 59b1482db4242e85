"""The structs by which the library plans: the request, the choice, and the plan."""

from __future__ import annotations

import ctypes as c

from .structs import SIZE, CacheParams, Input, Layout, Policy, Shape, Struct, members


class Parts(Struct):
    """struct edgekv_parts"""

    _fields_ = members(
        c.c_uint64,
        "host_bytes vocabulary_bytes graph_bytes rounding_bytes weight_bytes repack_bytes "
        "slot_bytes kv_bytes state_bytes compute_bytes output_bytes workspace_bytes "
        "bookkeeping_bytes swap_bytes reserved_bytes margin_bytes",
    )


class Setting(Struct):
    """struct edgekv_setting"""

    _fields_ = (
        *members(c.c_uint32, "budget block"),
        *members(c.c_int32, "kv_type repack"),
        ("n_streamed", c.c_uint32),
    )


SettingSpare = c.CFUNCTYPE(c.c_int64, c.c_void_p, c.POINTER(Setting))


class Choice(Input):
    """struct edgekv_choice"""

    _fields_ = (
        *members(c.c_uint32, "n_bytes budget least_budget block least_block"),
        *members(c.c_int32, "kv_type repack n_streamed"),
        *members(c.c_uint32, "n_layers n_probe n_ctx_train"),
        *members(c.c_int32, "ragged repositions"),
        ("n_ubatch", c.c_uint32),
        ("recalls", c.c_int32),
    )


Scratch = c.CFUNCTYPE(c.c_uint64, c.c_void_p, c.POINTER(Shape))


class DeviceLimit(Input):
    """struct edgekv_device_limit"""

    _fields_ = (SIZE, ("name", c.c_char_p), *members(c.c_uint64, "allowed_bytes serving_bytes context_bytes"))


class PlanRequest(Input):
    """struct edgekv_plan_request"""

    _fields_ = (
        SIZE,
        *members(c.c_uint64, "ceiling_bytes reserved_bytes host_bytes vocabulary_bytes graph_bytes"),
        *members(c.POINTER(Policy), "policy probe_policy"),
        ("n_probe", c.c_uint32),
        ("probe_scores", c.c_int32),
        *members(c.c_uint32, "n_sink n_recent budget block least_block n_spare"),
        *members(c.c_int32, "kv_type repack n_streamed maps"),
        *members(c.c_uint32, "n_ubatch n_draft n_slots n_threads"),
        ("repositions", c.c_int32),
        ("n_recalled", c.c_uint32),
        *members(c.c_uint64, "swap_memory_bytes swap_disk_bytes swap_buffer_bytes"),
        ("scratch", Scratch),
        ("scratch_data", c.c_void_p),
        ("gpu_layers", c.c_int32),
        ("tensor_split", c.POINTER(c.c_float)),
        ("limits", c.POINTER(DeviceLimit)),
        ("n_limits", c.c_size_t),
    )


class Remedies(Struct):
    """struct edgekv_remedies"""

    _fields_ = (("budget", c.c_uint32), ("kv_type", c.c_int32), ("block", c.c_uint32))


class Plan(Input):
    """struct edgekv_plan"""

    _fields_ = (
        SIZE,
        *members(
            c.c_uint64,
            "ceiling_bytes peak_bytes cell_bytes sequence_bytes segment_bytes streamed_bytes token_bytes",
        ),
        ("parts", Parts),
        *members(Policy, "policy probe_policy"),
        ("setting", Setting),
        ("layout", Layout),
        ("cache", CacheParams),
        ("remedies", Remedies),
        *members(c.c_uint32, "n_ubatch n_threads n_ctx_train n_layers n_tokens_max"),
    )
