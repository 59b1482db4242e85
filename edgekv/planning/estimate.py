"""Plans of one model, made by the library before any weight is loaded.

llama.cpp is asked for the exact bytes of weights, cache and graph buffers by a load that allocates none of them.
"""

from __future__ import annotations

import ctypes
import gc
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from edgekv.archive.space import free_share
from edgekv.binding import library, plan_structs, structs
from edgekv.binding.ggml_devices import start_gpus
from edgekv.binding.model import Context, header_for, refusals
from edgekv.binding.policy import cache_params
from edgekv.binding.row_archive import SEGMENT_TOKENS
from edgekv.errors import ConfigError, UnsupportedModelError
from edgekv.memory import process
from edgekv.options import KV_NAMES, MOST_DEVICES, Options
from edgekv.prompt.template import rehearse
from edgekv.warmup import reserved_bytes, warm_up

from .choice import Request
from .device_shares import DeviceShare, RemoteDevice, limited, share_of
from .native_request import NativeRequest
from .plan import Parts, Plan

GPU_KERNEL_BYTES = 40 << 20  # host memory; a driver loads its kernels when they are first used
SERVING_BYTES = 6 << 20  # a server's, beside workspace: one message, the graph as received and as built


class Measured(NamedTuple):
    """Bytes that a plan begins with: of this process, a vocabulary and a graph. 0 = the library measures them."""

    process: int = 0
    vocabulary: int = 0
    graph: int = 0


def measured() -> Measured:
    """Return the bytes that this process holds without its garbage, and without runtimes that were dropped."""
    gc.collect()
    process.return_freed_memory()
    n_bytes = ctypes.c_uint64()
    library.call("edgekv_process_bytes", ctypes.byref(n_bytes))
    return Measured(n_bytes.value)


class Refusal(NamedTuple):
    """The plan that is least over its limits, and single changes of it that would each make it fit."""

    plan: Plan
    remedies: plan_structs.Remedies


class Estimator:
    """Plans of one model under any options. Close it, or use it in `with`.

    remotes: the devices of servers
    header: that of the model's file, with the chat template of the options

    Raises ModelError for a file that cannot be used.
    """

    def __init__(self, path: Path, request: Request, remotes: Sequence[RemoteDevice] = ()) -> None:
        library.bindings()
        warm_up()
        self._path = path
        self._handle = ctypes.c_void_p()
        self._remotes = remotes
        self.header = header_for(path, request.options)
        for template in {self.header.chat_template, self.header.tools_template}:
            rehearse(template)
        of_gpus = GPU_KERNEL_BYTES if request.options.gpu_layers and start_gpus() else 0
        found = measured()
        self._measured = found._replace(process=found.process + of_gpus + reserved_bytes())
        native = self._native(request)
        with refusals(path, self.header):
            library.call(
                "edgekv_planner_new", str(path).encode(), ctypes.byref(native.fields), ctypes.byref(self._handle)
            )

    def close(self) -> None:
        """Free the library's planner."""
        library.load().edgekv_planner_free(self._handle)
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> Estimator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def best(self, request: Request) -> Plan | None:
        """Return the best plan that fits, or None.

        Raises UnsupportedModelError, and ConfigError if the model cannot have what the user named; other settings that
        it cannot have do not fit.
        """
        native = self._native(request)
        self._check(native, request.options)
        plan, fits = native.best(self._handle)
        return self._plan(request.options, native, plan) if fits else None

    def refusal(self, request: Request) -> Refusal:
        """Return the smallest plan and its remedies, for a request that `best` finds no plan for."""
        native = self._native(request)
        plan, _ = native.best(self._handle)
        return Refusal(self._plan(request.options, native, plan), plan.remedies)

    def plan(self, options: Options) -> Plan:
        """Return the plan for options that name a budget, whether it fits or not.

        Raises UnsupportedModelError, and ConfigError if this model cannot have such options.
        """
        native, plan = self._native(Request(options, frozenset())), plan_structs.Plan()
        self._check(native, options)
        native.call("edgekv_planner_estimate", self._handle, ctypes.byref(native.fields), ctypes.byref(plan))
        return self._plan(options, native, plan)

    def shape(self, request: Request) -> structs.Shape:
        """Return the shape of the model's cells.

        Raises UnsupportedModelError for a model that cannot have a cache for these options, ConfigError for its kind of
        cells.
        """
        return self._check(self._native(request), request.options)

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.header.n_layer

    @property
    def layer_bytes(self) -> float:
        """Weights of a layer on average."""
        of_layers = [tensor for tensor in self.header.tensors if tensor.name.startswith("blk.")]
        n_layers = len({tensor.name.split(".")[1] for tensor in of_layers})
        return sum(tensor.n_bytes for tensor in of_layers) / max(1, n_layers)

    def _native(self, request: Request) -> NativeRequest:
        """Return the request for the library, with the limits of devices."""
        options = request.options
        native = NativeRequest(
            request,
            self.n_layers,
            reserved_bytes=grammar_bytes(self.header.vocab_size, options.parallel) if options.grammars else 0,
            host_bytes=self._measured.process,
            vocabulary_bytes=self._measured.vocabulary,
            graph_bytes=self._measured.graph,
        )
        if self._handle and (options.device_memory is not None or options.gpu_layers or self._remotes):
            native.limit(limited(self._shares(native, None), options, self._remotes), options, SERVING_BYTES)
        return native

    def _check(self, native: NativeRequest, options: Options) -> structs.Shape:
        shape = structs.Shape()
        try:
            native.call("edgekv_planner_check", self._handle, ctypes.byref(native.fields), ctypes.byref(shape))
        except UnsupportedModelError:
            self._check_kind(shape, options)  # says more
            raise
        self._check_kind(shape, options)
        return shape

    def _shares(self, native: NativeRequest, plan: plan_structs.Plan | None) -> tuple[DeviceShare, ...]:
        """Return the shares of devices, without limits. plan: None = their names alone"""
        found, n = (structs.DeviceShare * MOST_DEVICES)(), ctypes.c_size_t()
        pointer = None if plan is None else ctypes.byref(plan)
        native.call(
            "edgekv_planner_devices",
            *(self._handle, ctypes.byref(native.fields), pointer, found, MOST_DEVICES, ctypes.byref(n)),
        )
        return tuple(share_of(usage, self._remotes) for usage in found[: n.value])

    def _plan(self, options: Options, native: NativeRequest, plan: plan_structs.Plan) -> Plan:
        """Return the library's plan as users see it."""
        setting, parts = plan.setting, plan.parts
        n_streamed = int(setting.n_streamed)
        options = replace(
            options,
            budget=setting.budget,
            block=setting.block,
            kv_type=KV_NAMES[setting.kv_type],
            repack=bool(setting.repack),
            resident=1 - n_streamed / self.n_layers if n_streamed else options.resident,
        )
        planned = Plan.of(
            options,
            model=self._path,
            n_cells=plan.layout.n_cells,
            n_cells_max=plan.layout.n_cells_max,
            even_cells=plan.cache.ragged == 0,
            cell_bytes=plan.cell_bytes,
            session_bytes=plan.sequence_bytes,
            n_ctx_train=plan.n_ctx_train,
            n_layers=self.n_layers,
            n_streamed=n_streamed,
            streamed_bytes=plan.streamed_bytes,
            token_bytes=plan.token_bytes,
            archive_bytes=_archive_limit(options),
            archive_token_bytes=plan.segment_bytes // SEGMENT_TOKENS,
            devices=limited(self._shares(native, plan), options, self._remotes),
            parts=Parts(*parts.as_dict().values()),
        )
        return replace(planned, mmap=planned.mmap and not parts.slot_bytes)

    def _check_kind(self, shape: structs.Shape, options: Options) -> None:
        """Raise ConfigError for drafts beside states, and for policies that compare values if there are latents."""
        if options.n_draft and not _drops_single_cells(shape):
            raise ConfigError(
                f"prompt_lookup=on needs cells that can be dropped one by one, but {self._path.name} keeps sliding "
                "windows or recurrent states; leave prompt_lookup out"
            )
        for name, policy in zip(("policy", "focus_policy"), options.policies, strict=False):
            if shape.latent_dim_v and "values" in policy.reads:
                raise ConfigError(
                    f"{name}={policy.spec} compares the values of a head, but {self._path.name} keeps latents, of "
                    "which every query head makes its own; choose one that reads keys or attention, such as keydiff "
                    "or snapkv"
                )


def suits_drafts(shape: structs.Shape) -> bool:
    """Return True if a model with such cells says the same with drafts, to the bit.

    Its single cells can be dropped then, and its logits do not depend on how many tokens are decoded at once. On
    x86-64 that is so with weights of every type, up to `Shape.n_exact` tokens.
    """
    return platform.machine().lower() in ("x86_64", "amd64") and _drops_single_cells(shape)


def _drops_single_cells(shape: structs.Shape) -> bool:
    return not (shape.window_cells or shape.state_bytes or shape.device_state_bytes)


def _archive_limit(options: Options) -> int:
    """Return the most bytes that the archive of a session takes on the disk."""
    if not options.archives:
        return 0
    return free_share(options.swap_folder) if options.archive_bytes is None else options.archive_bytes


def grammar_bytes(n_vocab: int, n_replies: int) -> int:
    """Return the most bytes that grammars take, for a vocabulary of this many tokens, and replies at a time."""
    from edgekv.grammar.masks import planned_bytes  # few plans need it

    return planned_bytes(n_vocab, n_replies)


def cache_params_of(options: Options) -> structs.CacheParams:
    """Return the parameters of a runtime's cache."""
    by_probe = [options.parsed_focus] if options.focus else []
    params = cache_params([options.parsed_policy], options.block, probed=by_probe, n_probe=options.probe_cells)
    params.repositions = options.reposition != "never"
    params.n_draft = options.n_draft
    return params


def checked_params(context: Context, options: Options) -> structs.CacheParams:
    """Return the parameters of this context's cache. Keys keep their positions if they cannot move and the options say
    "auto".

    Raises UnsupportedModelError if the model cannot have such a cache.
    """
    params = cache_params_of(options)
    try:
        library.call("edgekv_cache_check", context.handle, ctypes.byref(params))
    except UnsupportedModelError:
        if options.reposition != "auto":
            raise
        params.repositions = False
        library.call("edgekv_cache_check", context.handle, ctypes.byref(params))
    return params
