"""Chooses the options that a user left open: the best setting that fits.

The native library has the order of preference, which C programs use as well
(`native/src/plan/settings.h`). It asks here if a setting fits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgekv.arguments import check_names
from edgekv.binding import library, structs
from edgekv.binding.callback import Callback
from edgekv.errors import ConfigError
from edgekv.models.catalog import known_as
from edgekv.models.head_shares import has_shares
from edgekv.options import (
    DEFAULT_POLICY,
    DIVIDED_POLICY,
    KV_TYPES,
    MEANT,
    MERGED_POLICY,
    UNTURNED_POLICY,
    Options,
)

from .budget_search import BudgetSearch
from .default_memory import is_bundled, most_default_bytes
from .estimate import Estimator, cache_params_of
from .plan import Plan
from .swap_bytes import swap_spare_bytes

# The planner chooses these if they are None or not named, as it does a budget of None.
OPEN = ("memory", "policy", "block", "kv_type", "repack", "resident", "gpu_layers", "tensor_split")
KV_NAMES = {number: name for name, number in KV_TYPES.items()}
OVER_CEILING = 8  # enum edgekv_status
IMPOSSIBLE, GIVE_UP = -1, -2  # further answers of an edgekv_setting_fits than 0 and 1

MOST_DIVIDED = 1024  # the most cells of a head with which a division by a table was measured (docs/results)


def default_policy(model: Path, budget: int | None, *, merges: bool = True) -> str:
    """Return the policy that keeps most of a text in so many cells, as measured (docs/results).

    budget: None = all that fit; merges: cells may be means of evicted ones
    """
    if budget is not None and budget <= MOST_DIVIDED and has_shares(model):
        return MERGED_POLICY if merges else DIVIDED_POLICY
    return UNTURNED_POLICY if known_as(model) is None else DEFAULT_POLICY


def may_lack_table(model: Path, policy: object, budget: int | None) -> bool:
    """Return True if `lacks_table` may be true of the plan for an open policy and named cells. Makes no plan."""
    few = policy is None and budget is not None and budget <= MOST_DIVIDED
    return few and model.is_file() and not has_shares(model)


def lacks_table(plan: Plan) -> bool:
    """Return True if an open policy would divide so many cells, were they named and had the model a table of heads."""
    few = plan.policy == UNTURNED_POLICY and plan.budget_cells <= MOST_DIVIDED
    return few and plan.model.is_file() and not has_shares(plan.model)


@dataclass(frozen=True, slots=True)
class Request:
    """Options of a user, and the names of those that the planner may choose."""

    options: Options
    open: frozenset[str]

    @classmethod
    def of(cls, **given: object) -> Request:
        """Make a request of arguments of `Runtime`, of which None is the default.

        Raises ConfigError for unknown ones, and for values that cannot work.
        """
        check_names(given, (it.name for it in fields(Options) if it.init), "Runtime", MEANT)
        left_open = frozenset(name for name in OPEN if given.get(name) is None)
        named = {name: value for name, value in given.items() if value is not None}
        return cls(Options(**named), left_open)  # type: ignore[arg-type]

    def of_model(self, path: Path) -> Request:
        """Return the request with the policy that suits the model, and its largest default ceiling, if these are open.

        A ceiling of a user's own model stays open: it is lowered to what the chosen plan needs.
        """
        chosen: dict[str, Any] = {}
        left_open = self.open
        if "policy" in left_open:
            chosen["policy"] = default_policy(path, self.options.budget, merges=self.options.may_merge)
        if "memory" in left_open:
            if is_bundled(path):
                left_open -= {"memory"}
            else:
                chosen["memory"] = most_default_bytes()
        return Request(replace(self.options, **chosen), left_open)

    def plainer(self, path: Path) -> Request | None:
        """Return the request with less of an open policy that divides cells by a table: without means, then even cells.

        None for any other policy.
        """
        if "policy" not in self.open or not self.options.divides_by_table:
            return None
        policy = DIVIDED_POLICY if self.options.parsed_policy.merges else default_policy(path, None)
        return replace(self, options=replace(self.options, policy=policy))

    @property
    def repacks(self) -> bool:
        """Return True if the planner tries repacked weights first, because `repack` is open."""
        return "repack" in self.open and not self.options.mmap

    @property
    def preferred(self) -> Options:
        """Return the options, with repacked weights if that is open."""
        return replace(self.options, repack=True) if self.repacks else self.options


def choose(estimates: Estimator, request: Request) -> Plan | None:
    """Return the best plan that fits, or None.

    Raises ConfigError if the model cannot have what the user named; other settings that it cannot have do not fit.
    """
    repack = -1 if request.repacks else int(request.options.repack)
    plan = _chosen(estimates, request, repack, spare_bytes)
    if plan is not None and plan.repack and not plan.parts.repacking and not request.options.repack:
        maps = request.options.maps_weights and not plan.parts.slots
        return replace(plan, repack=False, mmap=maps)  # nothing to repack; the same bytes
    return plan


def largest(estimates: Estimator, request: Request) -> Plan | None:
    """Return the plan with the largest budget that fits, over all open options; None if nothing fits.

    Raises ConfigError if the model cannot have what the user named.
    """
    repack = -1 if request.repacks else int(request.options.repack)
    return _chosen(estimates, request, repack, spare_bytes, largest=True)


def smallest_plans(estimates: Estimator, request: Request) -> list[Plan]:
    """Return the plans of all possible settings, with the given budget, or else the smallest one."""
    tried = []

    def note(plan: Plan, _: Options) -> int:
        tried.append(plan)
        return -1

    _chosen(estimates, request, int(request.options.repack), note)
    return tried


def _chosen(
    estimates: Estimator,
    request: Request,
    repack: int,
    spare: Callable[[Plan, Options], int],
    *,
    largest: bool = False,
) -> Plan | None:
    """Return the plan of the first setting in the order of preference that fits, or of the largest budget.

    spare: the bytes that a plan leaves; negative = it does not fit
    """
    choice = _choice(request, estimates.n_ctx_train, repack, estimates.n_layers)
    searches: dict[Options, BudgetSearch] = {}  # key: options without a budget

    def options_of(setting: structs.Setting) -> Options:
        return replace(
            request.options,
            budget=None,
            block=setting.block,
            kv_type=KV_NAMES[setting.kv_type],
            repack=bool(setting.repack),
            resident=1 - setting.n_streamed / estimates.n_layers if setting.n_streamed else request.options.resident,
        )

    def spare_of(options: Options, budget: int) -> int:
        options = replace(options, budget=budget)
        return spare(estimates.plan(options), options)

    def answer(setting: structs.Setting) -> bool:
        options = options_of(setting)
        if options not in searches:
            most = library.load().edgekv_plan_most_cells(ctypes.byref(choice), setting.block)
            searches[options] = BudgetSearch(partial(spare_of, options), most)
        return searches[options].fits(setting.budget)

    chosen = choose_setting(choice, answer, largest=largest)
    return None if chosen is None else estimates.plan(replace(options_of(chosen), budget=chosen.budget))


def choose_setting(
    choice: structs.Choice, fits: Callable[[structs.Setting], bool], *, largest: bool = False
) -> structs.Setting | None:
    """Return the best setting that fits, or None.

    largest: return the setting with the largest budget instead, with any type of cache and block
    fits: tells if a setting fits; raises ConfigError if the model cannot have it

    Raises the errors of `fits`, except for a type of cache that the model cannot have and the user did not name.
    """
    refused: ConfigError | None = None

    def answer(_user_data: int | None, setting: ctypes._Pointer[structs.Setting]) -> int:
        nonlocal refused
        try:
            return int(fits(setting.contents))
        except ConfigError as error:
            refused = error
            return IMPOSSIBLE

    chosen, err = structs.Setting(), ctypes.create_string_buffer(library.ERR_SIZE)
    choose = library.load().edgekv_plan_largest if largest else library.load().edgekv_plan_choose
    callback = Callback(structs.SettingFits, answer, failed=GIVE_UP)
    with callback:
        status = choose(ctypes.byref(choice), callback.native, None, ctypes.byref(chosen), err, library.ERR_SIZE)
    if status == OVER_CEILING:
        return None
    if status != 0:
        raise refused or library.error_of(status, err.value.decode(errors="replace"))
    return chosen


def spare_bytes(plan: Plan, options: Options) -> int:
    """Return the bytes that a plan leaves under the tightest limit, named swap space among them; negative = over it."""
    of_swap = swap_spare_bytes(plan, options)
    return plan.spare_bytes if of_swap is None else min(plan.spare_bytes, of_swap)


def _choice(request: Request, n_ctx_train: int, repack: int, n_layers: int = 0) -> structs.Choice:
    """Return the limits of the choice for the native planner; 0 = open."""
    options = request.options
    streams = "resident" in request.open and options.may_stream
    repositions = options.reposition != "never"
    n_probe = options.probe_cells
    if options.replays:  # a longer block saves no probes: its replay is longer, too
        n_ctx_train, n_probe = max(0, n_ctx_train - n_probe * repositions), 0
    return structs.Choice(
        budget=options.budget or 0,
        least_budget=options.least_budget(),
        block=0 if "block" in request.open else options.block,
        least_block=options.evict_every or 1,
        kv_type=0 if "kv_type" in request.open else KV_TYPES[options.kv_type],
        repack=repack,
        n_streamed=-1 if streams else options.n_streamed(n_layers),
        n_layers=n_layers,
        n_probe=n_probe,
        n_ctx_train=n_ctx_train,
        ragged=cache_params_of(options).ragged,
        repositions=repositions,
    )


def most_cells(options: Options, n_ctx_train: int) -> int:
    """Return the largest budget whose cells, a block and a probe have positions in the trained context."""
    choice = _choice(Request(options, frozenset()), n_ctx_train, 0)
    return int(library.load().edgekv_plan_most_cells(ctypes.byref(choice), options.block))
