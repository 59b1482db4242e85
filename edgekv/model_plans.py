"""Plans and surveys of models that are not loaded, and perhaps only on a hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from .engines import plan_for, survey_for
from .errors import ModelNotFoundError
from .models.catalog import find_model, is_remote
from .planning.alternatives import Survey
from .planning.choice import Request
from .planning.plan import Plan


def plan(model: str | os.PathLike[str] | None = None, **options: object) -> Plan:
    """Return the plan of a runtime without loading its weights; arguments as for `Runtime`.

    A model "hf:OWNER/MODEL:QUANT" that is not on this machine is planned from its header on the hub (docs/pull.md).
    Raises CeilingError if no plan fits, ConfigError for options that cannot work, and ModelError for a file that
    cannot be used.
    """
    request = Request.of(**options)
    with _header_of(model, request) as (path, name):
        return _named(plan_for(path, request), name)


def survey(model: str | os.PathLike[str] | None = None, **options: object) -> Survey:
    """Return a plan, what limits it, and what else would fit; arguments and errors as for `plan`."""
    request = Request.of(**options)
    with _header_of(model, request) as (path, name):
        found = survey_for(path, request)
        return replace(found, plan=_named(found.plan, name), with_more=_named(found.with_more, name))


@contextmanager
def _header_of(model: str | os.PathLike[str] | None, request: Request) -> Iterator[tuple[Path, Path]]:
    """Yield a file with the header of a model, and its name in plans: both its path, unless it is only on a hub."""
    with ExitStack() as stack:
        try:
            path = name = find_model(model)
        except ModelNotFoundError:
            if not is_remote(model):
                raise
            from .hub.lookup import look_up  # few plans need it

            remote = stack.enter_context(look_up(str(model), request.of_model(Path(str(model))).options.ceiling_bytes))
            path, name = remote.header, Path(remote.file.name)
        yield path, name


def _named(plan: Plan, name: Path) -> Plan:
    return replace(plan, model=name)
