"""Errors that say why nothing fits a ceiling, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from edgekv.errors import CeilingError, ConfigError
from edgekv.memory.process import held
from edgekv.memory.sizes import MIB, format_size
from edgekv.options import Options

from .choice import Request, largest, smallest_plans
from .estimate import Estimator
from .plan import Plan
from .swap_bytes import swap_obstacle


def infeasible_error(estimates: Estimator, request: Request) -> CeilingError | ConfigError:
    """Return the error if nothing fits: by how much the smallest plan is over, and what would fit."""
    plan = _least(estimates, request)
    options = plan.resolve(request.options)
    if plan.fits:
        return ConfigError(swap_obstacle(plan, options))
    if not plan.excess_bytes:
        return _device_error(estimates, request, plan)
    needed, ceiling = plan.peak_bytes, plan.ceiling_bytes
    n_others, held_by_others = held()
    remedies = [*_remedies(estimates, request, options), f"raise the ceiling to {-(-needed // MIB)}MiB"]
    if plan.devices and plan.parts.kv:
        remedies.append("raise device_memory, so that more layers lie there")
    fixed = needed - held_by_others - plan.parts.kv - plan.parts.compute - plan.parts.bookkeeping
    if fixed > plan.ceiling_bytes:
        remedies.append("choose a smaller model")
    chosen = f" (kv_type={plan.kv_type}, block={plan.block})" if request.open & {"kv_type", "block"} else ""
    return CeilingError(
        f"memory={format_size(ceiling)} does not hold {plan.model.name} with a budget of {plan.budget_cells} cells"
        f"{chosen}: {format_size(needed)} are needed, {format_size(needed - ceiling)} more; "
        + _others(n_others, held_by_others)
        + ", or ".join(remedies),
        required_bytes=needed,
        ceiling_bytes=ceiling,
    )


def _others(n: int, n_bytes: int) -> str:
    """Return the sentence about other runtimes of this process; "" if there are none."""
    if not n:
        return ""
    runtimes, hold, them = ("other runtime is", "holds", "it") if n == 1 else ("other runtimes are", "hold", "them")
    return f"{n} {runtimes} open in this process and {hold} about {n_bytes // MIB} MiB: close {them}, or "


def _device_error(estimates: Estimator, request: Request, plan: Plan) -> CeilingError:
    """Return the error for the device that is over its ceiling by most."""
    share = max(plan.devices, key=lambda share: share.excess_bytes)
    allowed = share.allowed_bytes or 0
    options = plan.resolve(request.options)
    size = f"{-(-share.total // MIB)}MiB"
    n_layers = min(plan.gpu_layers, sum(share.layers for share in plan.devices) + 1)
    remedies = list(_remedies(estimates, request, options))
    if share.ceiling_bytes == allowed:
        what = f"device_memory={format_size(allowed)} of {share}"
        remedies.append(f"raise the ceiling of {share.name} to {size}")
    else:
        what = f"{share}, which has {format_size(allowed)} free,"
        remedies.append("free memory there")
    if len(plan.devices) > 1:
        remedies.append(f"give {share.name} less of tensor_split")
    remedies.append(f"put fewer than gpu_layers={n_layers} layers on devices")
    of_layers = f"{share.layers} layers{' and the output matrix' if share.output else ''}"
    return CeilingError(
        f"{what} does not hold {of_layers} of {plan.model.name} with a budget of {plan.budget_cells} cells: "
        f"{format_size(share.total)} are needed, {format_size(share.excess_bytes)} more; " + ", or ".join(remedies),
        required_bytes=share.total,
        ceiling_bytes=allowed,
    )


def _least(estimates: Estimator, request: Request) -> Plan:
    """Return the plan that is least over its ceilings, among all possible choices."""
    plans = smallest_plans(estimates, request)
    return min(plans, key=lambda plan: (plan.excess_bytes + plan.device_excess_bytes, plan.session_bytes))


def _remedies(estimates: Estimator, request: Request, options: Options) -> Iterator[str]:
    """Yield single changes that would each make it fit. A plan was tried with each."""
    if options.budget != options.least_budget():
        other = largest(estimates, request)
        if other is not None:
            yield f"lower the budget to {other.budget_cells}"
    for name, value in {"kv_type": "q8_0", "block": min(32, options.block)}.items():
        if name not in request.open:
            with suppress(ConfigError):
                changed = replace(options, **{name: value})  # type: ignore[arg-type]
                if estimates.plan(changed).fits:
                    yield f"use {name}={value}"
