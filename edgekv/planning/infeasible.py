"""Errors for a ceiling that no setting fits. They name the excess, and settings that would fit."""

from __future__ import annotations

from collections.abc import Iterator

from edgekv.binding import plan_structs
from edgekv.errors import CeilingError, ConfigError
from edgekv.memory.process import held
from edgekv.memory.sizes import MIB, format_size
from edgekv.options import KV_NAMES, Options

from .choice import Request
from .estimate import Refusal
from .plan import Plan


def infeasible_error(request: Request, refusal: Refusal) -> CeilingError | ConfigError:
    """Return the error if no setting fits. It names the excess of the smallest plan, and settings that would fit."""
    plan, remedies = refusal.plan, list(_remedies(refusal.remedies))
    if plan.fits:
        return _swap_error(plan, request.options)
    if not plan.excess_bytes:
        return _device_error(plan, remedies)
    needed, ceiling = plan.peak_bytes, plan.ceiling_bytes
    n_others, held_by_others = held()
    remedies.append(f"raise the ceiling to {-(-needed // MIB)}MiB")
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


def _swap_error(plan: Plan, options: Options) -> ConfigError:
    """Return the error for named swap space in which two sessions cannot take turns."""
    session, size = f"session of {plan.budget_cells} cells", format_size(plan.session_bytes)
    if options.swaps_to_disk:
        return ConfigError(
            f"swap_bytes={format_size(options.swap_dir_bytes or 0)} does not hold a {session}, which takes {size}; "
            f"raise swap_bytes to {-(-plan.session_bytes // MIB)}MiB, or lower the budget"
        )
    return ConfigError(
        f"swap_memory={format_size(options.swap_memory_bytes or 0)} does not hold two of a {session}, of which each "
        f"takes {size}, as a switch from one to the other needs; raise swap_memory to "
        f"{-(-2 * plan.session_bytes // MIB)}MiB, lower the budget, or raise swap_bytes"
    )


def _device_error(plan: Plan, remedies: list[str]) -> CeilingError:
    """Return the error for the device that is over its ceiling by most."""
    share = max(plan.devices, key=lambda share: share.excess_bytes)
    allowed = share.allowed_bytes or 0
    size = f"{-(-share.total // MIB)}MiB"
    n_layers = min(plan.gpu_layers, sum(share.layers for share in plan.devices) + 1)
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


def _remedies(found: plan_structs.Remedies) -> Iterator[str]:
    """Yield single changes that would each make it fit."""
    if found.budget:
        yield f"lower the budget to {found.budget}"
    if found.kv_type:
        yield f"use kv_type={KV_NAMES[found.kv_type]}"
    if found.block:
        yield f"use block={found.block}"
