"""Planning: from a ceiling in bytes to a budget in cells, before any weight is loaded.

llama.cpp is asked for the exact bytes of weights, cache and graph buffers by a load that allocates none of them.
What Python and the vocabulary take is measured in this process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from . import _native, process
from .errors import CeilingError, ConfigError
from .model import Model
from .models.registry import find_model
from .native_policy import cache_params
from .options import Options
from .sizes import MIB, format_size

HEAD_LIMIT = 3  # times the budget that one head may keep, where heads differ: the attention mask is as wide as that
MARGIN_BYTES = 8 * MIB  # loading leaves holes in the heap; graphs, the tokeniser, Python objects of a reply
THREAD_BYTES = MIB // 4  # stack and attention scratch of one thread
ACTIVATION_BYTES = 2  # one element of a block's widest activation, in the format that weights are multiplied in


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes of everything that is resident at the peak. `python` is this process before the model."""

    python: int
    vocabulary: int
    weights: int
    repacking: int
    kv: int
    compute: int
    outputs: int
    workspace: int
    bookkeeping: int
    margin: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True)
class Plan:
    """What a runtime will hold. `n_cells` are allocated per head: budget_cells + block + a probe's.

    n_cells_max: of one head, where heads share a budget; cell_bytes: of one cell in every head of every layer
    """

    model: Path
    ceiling_bytes: int
    budget_cells: int
    block: int
    kv_type: str
    n_cells: int
    n_cells_max: int
    cell_bytes: int
    n_ctx_train: int
    device_bytes: int
    parts: Parts

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all cells, on whatever device they lie; the same however heads share them."""
        return self.n_cells * self.cell_bytes

    @property
    def peak_bytes(self) -> int:
        """Planned peak of the whole process."""
        return self.parts.total

    def as_dict(self) -> dict[str, object]:
        """The plan as plain values, for JSON."""
        fields = asdict(self) | {"model": str(self.model), "planned_peak_bytes": self.peak_bytes}
        return fields | {"parts": asdict(self.parts)}


@dataclass(frozen=True)
class Estimator:
    """Plans for one model: what any number of cells would take. `estimator` makes one."""

    model: Model
    options: Options
    python_bytes: int
    vocabulary_bytes: int

    @property
    def n_ctx_train(self) -> int:
        """The model's trained context, in tokens."""
        return self.model.n_ctx_train

    def plan(self, budget: int) -> Plan:
        """The plan for a budget, whether it fits or not. Raises UnsupportedModelError."""
        options = self.options
        params = cache_params_of(options)
        n_cells = budget + options.block + options.probe_cells
        n_cells_max = n_cells + (HEAD_LIMIT - 1) * budget * bool(params.ragged)
        context = self.model.new_context(n_cells, options, n_cells_max=n_cells_max)
        try:
            shape, memory = context.shape(), context.memory()
        finally:
            context.close()
        policies = [options.parsed_policy] + ([options.parsed_focus] if options.focus else [])
        parts = Parts(
            python=self.python_bytes,
            vocabulary=self.vocabulary_bytes,
            weights=memory.weight_bytes,
            repacking=memory.repack_bytes,
            kv=memory.kv_bytes,
            compute=memory.compute_bytes,
            outputs=memory.output_bytes,
            workspace=options.n_threads * THREAD_BYTES
            + options.block * self.model.widest_row * ACTIVATION_BYTES
            + max(
                policy.scratch_bytes(
                    shape.n_cells_max, shape.n_head_kv_max, shape.n_head_max, shape.head_dim_k, shape.head_dim_v
                )
                for policy in policies
            ),
            bookkeeping=int(_native.library().edgekv_cache_estimate_bytes(ctypes.byref(shape), ctypes.byref(params))),
            margin=MARGIN_BYTES,
        )
        return Plan(
            model=self.model.path,
            ceiling_bytes=options.ceiling_bytes,
            budget_cells=budget,
            block=options.block,
            kv_type=options.kv_type,
            n_cells=shape.n_cells,
            n_cells_max=shape.n_cells_max,
            cell_bytes=shape.cell_bytes,
            n_ctx_train=self.n_ctx_train,
            device_bytes=memory.device_bytes,
            parts=parts,
        )

    def smallest_budget(self) -> int:
        """The least budget that holds the protected cells and one more."""
        budget, options = 1, self.options
        while (least := options.sinks + options.recent_cells(budget) + 1) > budget:
            budget = least
        return budget

    def largest_plan(self) -> Plan:
        """The plan with the largest budget that fits, at most the trained context.

        Raises CeilingError when not even the smallest fits.
        """
        low = self.plan(self.smallest_budget())
        if low.peak_bytes > low.ceiling_bytes:
            raise self.refusal(low)
        best, fails = low, max(low.budget_cells, self.n_ctx_train) + 1
        while fails - best.budget_cells > 1:
            candidate = self.plan((best.budget_cells + fails) // 2)
            if candidate.peak_bytes <= candidate.ceiling_bytes:
                best = candidate
            else:
                fails = candidate.budget_cells
        return best

    def refusal(self, plan: Plan) -> CeilingError:
        """The error for a plan over its ceiling: by how much, and what would make it fit."""
        over = plan.peak_bytes - plan.ceiling_bytes
        remedies = [*self._remedies(plan), f"raise the ceiling to {-(-plan.peak_bytes // MIB)}MiB"]
        return CeilingError(
            f"memory={format_size(plan.ceiling_bytes)} does not hold {plan.model.name} with a budget of "
            f"{plan.budget_cells} cells: {format_size(plan.peak_bytes)} are needed, {format_size(over)} more; "
            + ", or ".join(remedies),
            required_bytes=plan.peak_bytes,
            ceiling_bytes=plan.ceiling_bytes,
        )

    def _remedies(self, plan: Plan) -> Iterator[str]:
        """Changes that would make it fit, each of them alone, tried by planning with them."""
        options = self.options
        smallest = self.smallest_budget()
        if plan.budget_cells > smallest and self.plan(smallest).peak_bytes <= plan.ceiling_bytes:
            yield f"lower the budget to {self.largest_plan().budget_cells}"
        changes = {
            "use kv_type=q8_0": replace(options, kv_type="q8_0"),
            "use block=32": replace(options, block=min(32, options.block), evict_every=None),
        }
        for text, changed in changes.items():
            with suppress(ConfigError):  # not every model can have every change
                if replace(self, options=changed).plan(plan.budget_cells).peak_bytes <= plan.ceiling_bytes:
                    yield text
        if plan.parts.total - plan.parts.kv - plan.parts.compute - plan.parts.bookkeeping > plan.ceiling_bytes:
            yield "choose a smaller model"


def cache_params_of(options: Options) -> _native.CacheParams:
    """What the cache of a runtime holds beside keys and values."""
    focus = [options.parsed_focus] if options.focus else []
    params = cache_params([options.parsed_policy], options.block, probed=focus, n_probe=options.probe_cells)
    params.repositions = options.reposition != "never"
    return params


@contextmanager
def estimator(path: Path, options: Options) -> Iterator[Estimator]:
    """An estimator for a model file; nothing of the weights is loaded. Raises ModelError."""
    _native.bindings()
    process.return_freed_memory()
    python_bytes = process.resident_bytes()
    with Model(path, options, no_alloc=True) as model:
        yield Estimator(model, options, python_bytes, max(0, process.resident_bytes() - python_bytes))


def make_plan(path: Path, options: Options) -> Plan:
    """The plan for a model file: the given budget checked, or the largest that fits. Raises CeilingError."""
    with estimator(path, options) as estimates:
        if options.budget is None:
            return estimates.largest_plan()
        plan = estimates.plan(options.budget)
        if plan.peak_bytes > plan.ceiling_bytes:
            raise estimates.refusal(plan)
        return plan


def plan(model: str | os.PathLike[str] | None = None, **options: object) -> Plan:
    """Plan a runtime without loading it; arguments as for `Runtime`.

    Raises CeilingError when it does not fit, ConfigError for impossible options, ModelError for the file.
    """
    return make_plan(find_model(model), Options(**options))  # type: ignore[arg-type]
