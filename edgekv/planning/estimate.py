"""Bytes of a runtime, part by part, before any weight is loaded.

llama.cpp is asked for the exact bytes of weights, cache and graph buffers by a load that allocates none of them.
The bytes of Python and of the vocabulary are measured in this process.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from edgekv.archive.session_archive import recalled_cells
from edgekv.archive.space import free_share
from edgekv.binding import library, structs
from edgekv.binding.ggml_devices import start_gpus
from edgekv.binding.model import Context, Model, header_for, layout_for
from edgekv.binding.policy import cache_params
from edgekv.binding.row_archive import SEGMENT_TOKENS
from edgekv.errors import ConfigError, UnsupportedModelError
from edgekv.memory.sizes import MIB
from edgekv.models.head_shares import check_shares
from edgekv.options import KV_TYPES, UBATCH, Options
from edgekv.prompt.template import rehearse
from edgekv.warmup import reserved_bytes, warm_up

from .device_shares import RemoteDevice, limited, shares_of
from .measure_memory import held_bytes, measure
from .plan import Parts, Plan
from .swap_bytes import planned_swap_bytes, session_bytes_of

GPU_KERNEL_BYTES = 40 << 20  # host memory; a driver loads its kernels when they are first used
SERVING_BYTES = 4 << 20  # a server's, beside workspace: one message, the graph as received and as built


def _gpu_bytes(options: Options) -> int:
    """Start the GPUs that get layers; return what they take of the host's memory beside what is measured now."""
    return GPU_KERNEL_BYTES if options.gpu_layers and start_gpus() else 0


class Estimator:
    """Plans of one model under any options, whether they fit or not. Close it, or use it in `with`.

    remotes: the devices of servers
    header: that of the model's file, with the chat template of the options

    Raises ModelError for a file that cannot be used.
    """

    def __init__(self, path: Path, options: Options, remotes: Sequence[RemoteDevice] = ()) -> None:
        library.bindings()
        warm_up()
        self._path = path
        self.header = header_for(path, options)
        for template in {self.header.chat_template, self.header.tools_template}:
            rehearse(template)
        self._remotes = remotes
        self._models: dict[bool, Model] = {}  # key: repacked or not
        self._division: object = None  # layers over devices, as these models were loaded
        self._plans: dict[Options, Plan] = {}
        self._drops_single_cells = False  # known once a graph was measured
        # by heads of different lengths or not, and by cache type, which change the nodes of a graph
        self._graph_bytes: dict[bool, dict[str, int]] = {}
        self._python_bytes = _gpu_bytes(options) + held_bytes() + reserved_bytes()
        _, self._vocabulary_bytes = measure(lambda: self._model(options))

    def close(self) -> None:
        """Free what was loaded to estimate."""
        for model in self._models.values():
            model.close()
        self._models = {}

    def __enter__(self) -> Estimator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_ctx_train(self) -> int:
        """The model's trained context, in tokens."""
        return next(iter(self._models.values())).n_ctx_train

    def plan(self, options: Options) -> Plan:
        """Return the plan for options that name a budget.

        Raises UnsupportedModelError, and ConfigError if this model cannot have such options.
        """
        # the bytes of a plan do not depend on its ceilings, and streamed weights only on how many there are
        key = replace(options, memory=MIB, device_memory=None, resident=None)
        if key not in self._plans:
            self._plans[key] = self._estimate(key)
        plan = self._streamed(self._plans[key], options)
        return replace(plan, ceiling_bytes=options.ceiling_bytes, devices=limited(plan.devices, options, self._remotes))

    def allows(self, options: Options) -> bool:
        """Return True if the model can have a cache for the policies of these options."""
        try:
            self._graphs(options)
        except UnsupportedModelError:
            return False
        return True

    def suits_drafts(self, options: Options) -> bool:
        """Return True if the model says the same with drafts, to the bit.

        Its single cells can be dropped then, and its logits do not depend on how many tokens are decoded at once. That
        was tried with quantised weights on x86-64.
        """
        self._graphs(options)
        of_x86 = platform.machine().lower() in ("x86_64", "amd64")
        return of_x86 and self._drops_single_cells and not self.header.has_float_matrices

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

    def _model(self, options: Options) -> Model:
        division = (options.gpu_layers, options.split)
        if division != self._division:  # each model holds a vocabulary, so models of one division are loaded at a time
            self.close()
            self._graph_bytes.clear()
            self._division = division
        if options.repack not in self._models:
            self._models[options.repack] = Model(self._path, options, header=self.header, no_alloc=True)
        return self._models[options.repack]

    def _graphs(self, options: Options) -> int:
        """Return the bytes of a graph's description, measured with few cells and blocks of UBATCH for every plan.

        All types are measured before any context with many cells is freed, which changes how glibc serves later ones.
        Raises UnsupportedModelError and ConfigError if such a model cannot have a cache of these options.
        """
        measured = self._graph_bytes.setdefault(bool(cache_params_of(options).ragged), {})
        if not measured:
            for kv_type in KV_TYPES:
                with suppress(ConfigError):
                    measured[kv_type] = self._measured_graph(replace(options, kv_type=kv_type))
        if options.kv_type not in measured:
            measured[options.kv_type] = self._measured_graph(options)  # raises the error
        return measured[options.kv_type]

    def _measured_graph(self, options: Options) -> int:
        model = self._model(options)
        options = replace(options, block=max(UBATCH, options.evict_every or 1), ubatch=None)
        context, n_bytes = measure(lambda: _new_context(model, options, budget=1))
        with closing(context):
            shape = context.shape()
            self._drops_single_cells = not (shape.window_cells or shape.state_bytes or shape.device_state_bytes)
            self._check_kind(shape, options)
            checked_params(context, options)
            if options.divides_by_table:
                check_shares(self._path, shape.n_layer, shape.n_head_total)
        return n_bytes

    def _estimate(self, options: Options) -> Plan:
        assert options.budget is not None
        model = self._model(options)
        params = cache_params_of(options)
        graphs = self._graphs(options)
        context = _new_context(model, options, options.budget)
        try:
            shape, memory = context.shape(), context.memory()
            native = structs.Parts(
                host_bytes=self._python_bytes,
                vocabulary_bytes=self._vocabulary_bytes,
                graph_bytes=graphs * (2 if options.servers else 1),  # servers get a copy
            )
            library.call("edgekv_context_parts", context.handle, ctypes.byref(params), ctypes.byref(native))
            devices = shares_of(context, params, self._remotes, SERVING_BYTES + native.workspace_bytes)
        finally:
            context.close()
        state_bytes = memory.state_bytes + sum(share.states for share in devices)
        if not memory.repack_bytes:
            self._models.setdefault(False, model)  # both models are the same if nothing is repacked
        session_bytes, numbers_bytes = session_bytes_of(shape, state_bytes, params, options)
        scratch = (
            policy.scratch_bytes(
                shape.n_cells_max, shape.n_head_kv_max, shape.n_head_max, shape.head_dim_k, shape.head_dim_v
            )
            for policy in options.policies
        )
        parts = Parts(
            python=native.host_bytes,
            vocabulary=native.vocabulary_bytes,
            graphs=native.graph_bytes,
            rounding=native.rounding_bytes,
            weights=native.weight_bytes,
            repacking=native.repack_bytes,
            slots=0,
            kv=native.kv_bytes,
            state=native.state_bytes,
            compute=native.compute_bytes,
            outputs=native.output_bytes,
            workspace=native.workspace_bytes + max(scratch),
            bookkeeping=native.bookkeeping_bytes + _archive_bytes(shape, options),
            swap=planned_swap_bytes(options, numbers_bytes),
            grammars=_grammar_bytes(model, options.parallel) if options.grammars else 0,
            margin=native.margin_bytes,
        )
        return Plan.of(
            options,
            model=self._path,
            n_cells=shape.n_cells,
            n_cells_max=shape.n_cells_max,
            cell_bytes=shape.cell_bytes,
            session_bytes=session_bytes,
            n_ctx_train=self.n_ctx_train,
            n_layers=self.n_layers,
            n_streamed=0,
            streamed_bytes=0,
            token_bytes=0,
            archive_bytes=_archive_limit(options),
            archive_token_bytes=_archive_token_bytes(shape, options),
            devices=devices,
            parts=parts,
        )

    def _streamed(self, plan: Plan, options: Options) -> Plan:
        """Return a plan without the weights that stay in the file: streamed layers, and tables that are looked up."""
        if options.mmap or options.gpu_layers:
            return plan
        n_streamed = options.n_streamed(self.n_layers)
        streaming = structs.Streaming()
        native = structs.Parts(weight_bytes=plan.parts.weights, repack_bytes=plan.parts.repacking)
        library.call(
            "edgekv_parts_stream",
            *(self._model(options).handle, n_streamed, options.n_ubatch),
            *(ctypes.byref(native), ctypes.byref(streaming)),
        )
        chosen_bytes = streaming.expert_bytes * streaming.n_experts_used // max(1, streaming.n_experts)
        return replace(
            plan,
            mmap=plan.mmap and not native.slot_bytes,
            n_streamed=n_streamed,
            streamed_bytes=streaming.streamed_bytes + streaming.expert_bytes,
            token_bytes=streaming.streamed_bytes + chosen_bytes,
            parts=replace(
                plan.parts, weights=native.weight_bytes, repacking=native.repack_bytes, slots=native.slot_bytes
            ),
        )

    def _check_kind(self, shape: structs.Shape, options: Options) -> None:
        """Raise ConfigError for drafts beside states, and for policies that compare values if there are latents."""
        if options.n_draft and not self._drops_single_cells:
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


def _archive_bytes(shape: structs.Shape, options: Options) -> int:
    """Return the bytes that archives hold and a recall takes."""
    if not options.archives or not shape.n_head_total:
        return 0
    numbers = options.probe_cells, recalled_cells(options.spare_cells)
    return options.parallel * int(library.load().edgekv_archive_estimate_bytes(ctypes.byref(shape), *numbers))


def _archive_limit(options: Options) -> int:
    """Return the most bytes that the archive of a session takes on the disk."""
    if not options.archives:
        return 0
    folder = None if options.swap_dir is None else str(options.swap_dir)
    return free_share(folder) if options.archive_bytes is None else options.archive_bytes


def _archive_token_bytes(shape: structs.Shape, options: Options) -> int:
    """Return the bytes that a token takes in an archive; 0 = there is none."""
    n_bytes = int(library.load().edgekv_archive_segment_bytes(ctypes.byref(shape)))
    return n_bytes // SEGMENT_TOKENS if options.archives else 0


def _grammar_bytes(model: Model, n_replies: int) -> int:
    from edgekv.grammar.masks import planned_bytes  # few plans need it

    return planned_bytes(model.n_vocab, n_replies)


def _new_context(model: Model, options: Options, budget: int) -> Context:
    """Make a context with the cells of a budget, as a runtime does."""
    ragged = cache_params_of(options).ragged
    layout = layout_for(options, budget, ragged=ragged, n_ctx_train=model.n_ctx_train)
    layout.n_slots = options.parallel
    return Context(model, layout.n_cells, options, layout)


def cache_params_of(options: Options) -> structs.CacheParams:
    """Return the parameters of a runtime's cache."""
    by_probe = [options.parsed_focus] if options.probes_texts or options.replays else []
    by_text = [] if options.replays else [options.parsed_policy]
    params = cache_params(by_text, options.block, probed=by_probe, n_probe=options.probe_cells)
    params.repositions = options.reposition != "never"
    params.n_draft = options.n_draft
    return params


def checked_params(context: Context, options: Options) -> structs.CacheParams:
    """Return the parameters of this context's cache. Keys keep their positions if they cannot move and the options say
    "auto".

    Raises UnsupportedModelError if the model cannot have such a cache. Its weights need not be loaded.
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
