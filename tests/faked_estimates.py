"""Estimates without a model, for tests of what the library's search chooses by them."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

from edgekv.binding import library, plan_structs, structs
from edgekv.binding.callback import Callback
from edgekv.errors import ConfigError
from edgekv.options import KV_NAMES
from edgekv.planning.choice import Request
from edgekv.planning.device_shares import DeviceShare, limited
from edgekv.planning.native_request import NativeRequest
from edgekv.planning.plan import Parts, Plan

CELL_BYTES = {"f16": 1000, "q8_0": 531, "q4_0": 281}
IMPOSSIBLE = -(1 << 63)  # EDGEKV_SETTING_IMPOSSIBLE
GIVE_UP = IMPOSSIBLE + 1  # EDGEKV_SETTING_GIVE_UP


class Estimates:
    """An Estimator without a model: fixed bytes, cells, and a compute buffer that grows with the block.

    fixed: bytes of weights
    block_bytes: bytes of the compute buffer, for every token of a block
    to_repack: bytes of weights that may be repacked; more: bytes that they then take beyond these
    n_layers: layers of `layer_bytes`, which are counted in `fixed`, and may be streamed
    """

    def __init__(
        self,
        n_ctx_train=100_000,
        impossible=(),
        on_device=0,
        to_repack=0,
        more=0,
        n_layers=0,
        fixed=100_000,
        block_bytes=400,
        layer_bytes=8_000,
    ):
        self.n_layers = n_layers
        self.to_repack = to_repack
        self.more = more
        self.n_ctx_train = n_ctx_train
        self.impossible = impossible
        self.on_device = on_device
        self.fixed = fixed
        self.block_bytes = block_bytes
        self.layer_bytes = layer_bytes

    def shape(self, request):
        """Return the shape of cells that cannot be dropped one by one, so that there are no drafts."""
        return structs.Shape(window_cells=1)

    def best(self, request):
        """Return the best plan that fits, as the library's search finds it, or None."""
        choice = NativeRequest(request, self.n_layers).choice(self.n_layers, self.n_ctx_train)
        chosen = choose_setting(choice, lambda setting: self.plan(self._options(request, setting)).spare_bytes)
        if chosen is None:
            return None
        plan = self.plan(self._options(request, chosen))
        if plan.repack and not plan.parts.repacking and not request.options.repack:
            return replace(plan, repack=False, mmap=request.options.maps_weights and not plan.parts.slots)
        return plan

    def _options(self, request, setting):
        return replace(
            request.options,
            budget=setting.budget,
            block=setting.block,
            kv_type=KV_NAMES[setting.kv_type],
            repack=bool(setting.repack),
            resident=1 - setting.n_streamed / self.n_layers if setting.n_streamed else request.options.resident,
        )

    def plan(self, options):
        if options.kv_type in self.impossible:
            raise ConfigError(f"kv_type={options.kv_type} needs other heads; use kv_type=f16")
        n_cells = options.budget + options.block
        n_streamed = options.n_streamed(self.n_layers)
        kv = n_cells * CELL_BYTES[options.kv_type]
        parts = dict.fromkeys(Parts.__slots__, 0) | {
            "weights": self.fixed - self.to_repack * options.repack - n_streamed * self.layer_bytes,
            "slots": min(n_streamed, 2) * self.layer_bytes,
            "kv": 0 if self.on_device else kv,
            "compute": options.block * self.block_bytes,
            "repacking": (self.to_repack + self.more) * options.repack,
        }
        shares = (DeviceShare("CUDA0", "", 9, False, 0, kv, 0, 0, 0),) if self.on_device else ()
        return Plan.of(
            options,
            model=Path("model.gguf"),
            n_cells=n_cells,
            n_cells_max=n_cells,
            even_cells=True,
            cell_bytes=CELL_BYTES[options.kv_type],
            session_bytes=kv,
            n_ctx_train=self.n_ctx_train,
            n_layers=self.n_layers,
            n_streamed=n_streamed,
            streamed_bytes=n_streamed * self.layer_bytes,
            token_bytes=n_streamed * self.layer_bytes,
            devices=limited(shares, options, ()),
            parts=Parts(**parts),
        )


def choose_setting(choice, spare, *, largest=False):
    """Return the best setting that fits, or the one with the largest budget; None if none fits.

    spare: returns the bytes that a setting leaves; raises ConfigError if the model cannot have it
    """
    refused = []

    def answer(_user_data, setting):
        try:
            return spare(setting.contents)
        except ConfigError as error:
            refused.append(error)
            return IMPOSSIBLE

    chosen = plan_structs.Setting()
    callback = Callback(plan_structs.SettingSpare, answer, failed=GIVE_UP)
    try:
        with callback:
            name = "edgekv_plan_largest" if largest else "edgekv_plan_choose"
            library.call(name, ctypes.byref(choice), callback.native, None, ctypes.byref(chosen))
    except library.OverCeiling:
        return None
    except ConfigError:
        raise refused[-1] from None
    return chosen


def best_plan(estimates, **named):
    """Return the best plan of arguments of `Runtime`, or None."""
    return estimates.best(Request.of(**named))
