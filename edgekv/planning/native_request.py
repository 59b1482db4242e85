"""A request as the library's planner takes it."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from edgekv.archive.recalling import MOST_RECALLED
from edgekv.binding import library, plan_structs
from edgekv.binding.callback import Callback
from edgekv.binding.policy import NativePolicy
from edgekv.memory.raw_files import CHUNK_BYTES
from edgekv.options import DRAFT_TOKENS, KV_TYPES, MOST_DEVICES, REPOSITION, Options
from edgekv.policies import Policy

from .choice import Request
from .device_shares import DeviceShare, context_bytes

NO_LIMIT = GIVE_UP = (1 << 64) - 1  # UINT64_MAX
REPOSITIONS = dict(zip(REPOSITION, (1, 2, 0), strict=True))


class NativeRequest:
    """`struct edgekv_plan_request` of a request, in `fields`. It must live while the library uses them.

    n_layers: layers of the model
    further: fields that do not follow from the request
    """

    def __init__(self, request: Request, n_layers: int, **further: int) -> None:
        options = request.options
        self._policies = [NativePolicy(policy) for policy in (options.parsed_policy, options.parsed_focus)]
        self.fields = plan_structs.PlanRequest(
            ceiling_bytes=options.ceiling_bytes,
            policy=c.pointer(self._policies[0].fields),
            probe_policy=c.pointer(self._policies[1].fields),
            n_probe=options.probe_tokens if options.focus or options.archives else 0,
            probe_scores=options.focus,
            n_sink=options.sinks,
            n_recent=options.least_budget() - options.sinks - 1,
            budget=options.budget or 0,
            block=0 if "block" in request.open else options.block,
            least_block=options.ubatch or 1,
            n_spare=options.evict_every or 0,
            kv_type=0 if "kv_type" in request.open else KV_TYPES[options.kv_type],
            repack=-1 if request.repacks else options.repack,
            n_streamed=-1 if "resident" in request.open and options.may_stream else options.n_streamed(n_layers),
            maps=bool(options.mmap),
            n_ubatch=options.most_ubatch,
            n_draft=DRAFT_TOKENS if options.prompt_lookup == "on" else 0,
            n_slots=options.parallel,
            n_threads=options.n_threads,
            repositions=REPOSITIONS[options.reposition],
            n_recalled=MOST_RECALLED if options.archives else 0,
            swap_memory_bytes=options.swap_memory_bytes or 0,
            swap_disk_bytes=NO_LIMIT if options.swap_dir_bytes is None else options.swap_dir_bytes,
            swap_buffer_bytes=2 * CHUNK_BYTES,
            gpu_layers=options.gpu_layers,
            **further,
        )
        if options.split:
            self.fields.tensor_split = (c.c_float * MOST_DEVICES)(*options.split)
        self._scratch = _scratch_of(options.policies)
        if self._scratch is not None:
            self.fields.scratch = self._scratch.native
            self.fields.scratch_data = hash(tuple(policy.spec for policy in options.policies)) & 0xFFFF_FFFF

    def limit(self, shares: Sequence[DeviceShare], options: Options, serving_bytes: int) -> None:
        """Name the limits of devices. serving_bytes: bytes that a server holds beside its buffers and workspace"""
        limits = [
            plan_structs.DeviceLimit(
                share.name.encode(),
                NO_LIMIT if share.allowed_bytes is None else share.allowed_bytes,
                serving_bytes if share.address else 0,
                context_bytes(share, options),
            )
            for share in shares
        ]
        self._limits = (plan_structs.DeviceLimit * len(limits))(*limits)
        self.fields.limits, self.fields.n_limits = self._limits, len(limits)

    def best(self, planner: c.c_void_p) -> tuple[plan_structs.Plan, bool]:
        """Return the best plan that fits, and True; if none does, the one that is least over its limits, and False."""
        plan = plan_structs.Plan()
        try:
            self.call("edgekv_planner_choose", planner, c.byref(self.fields), c.byref(plan))
        except library.OverCeiling:
            return plan, False
        return plan, True

    def choice(self, n_layers: int, n_ctx_train: int) -> plan_structs.Choice:
        """Return the settings to choose among, for a model of so many layers and such a trained context."""
        choice = plan_structs.Choice()
        self.call("edgekv_plan_choice", c.byref(self.fields), n_layers, n_ctx_train, c.byref(choice))
        return choice

    def call(self, name: str, *arguments: Any) -> None:
        """`library.call`; if a custom scorer made it fail, raises what the scorer raised."""
        with self._scratch or nullcontext():
            library.call(name, *arguments)


def _scratch_of(policies: Iterable[Policy]) -> Callback | None:
    """Return the callback that gives the scorers' bytes beside the library's workspace; None if they take none."""
    custom = [policy for policy in policies if type(policy.base).scratch_bytes is not Policy.scratch_bytes]

    def most_bytes(_user_data: int | None, shape: Any) -> int:
        cells = shape.contents
        sizes = cells.n_cells_max, cells.n_head_kv_max, cells.n_head_max, cells.head_dim_k, cells.head_dim_v
        return max(policy.scratch_bytes(*sizes) for policy in custom)

    return Callback(plan_structs.Scratch, most_bytes, failed=GIVE_UP) if custom else None


def most_cells(options: Options, n_ctx_train: int) -> int:
    """Return the largest budget whose cells, a block and a probe have positions in the trained context."""
    choice = NativeRequest(Request(options, frozenset()), 0).choice(0, n_ctx_train)
    return int(library.load().edgekv_plan_most_cells(c.byref(choice), options.block))
