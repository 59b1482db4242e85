"""Measure the table of a model's heads if it has none, and keep it in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError
from edgekv.generation.request import ProgressCallback
from edgekv.models.catalog import find_model
from edgekv.models.head_shares import HeadShares, has_shares, path_in_cache
from edgekv.store.atomic_write import atomic_write

from .head_needs import measure

N_TOKENS = 1024  # tokens of the passage; further passages say the same (docs/policies.md)


def measure_heads(
    model: str | os.PathLike[str] | None = None,
    *,
    memory: int | str | None = None,
    progress: ProgressCallback | None = None,
    **further: Any,
) -> Path | None:
    """Measure once which heads of a model need many cells; return the file of the table, or None if there was one.

    A passage of 1,024 tokens is read twice in a worker process, which keeps the ceiling. The table goes into the user's
    cache, where every copy of the model finds it. From then on at most 1,024 cells that are named are divided by it.

    memory: ceiling of the worker, as for `edgekv.Runtime`
    progress: called while the passage is read
    further: arguments of `edgekv.Runtime` that say where the model lies and who computes, such as `threads` and `rpc`

    Raises ConfigError for a folder that cannot be written, UnsupportedModelError and ConfigError for a model that
    cannot be measured, CeilingError if no plan fits, and what `edgekv.Runtime` raises besides.
    """
    path = find_model(model)
    if has_shares(path):
        return None
    out = writable_path_in_cache(path)
    table = measure(path, n_passages=1, n_tokens=N_TOKENS, memory=memory, isolated=True, progress=progress, **further)
    write_table(out, table)
    return out


def writable_path_in_cache(model: Path) -> Path:
    """Return the path of a model's table in the cache, and make its folder. Raises ConfigError if that fails."""
    out = path_in_cache(model)
    try:
        out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(out, error.strerror) from error
    if not os.access(out.parent, os.W_OK):
        raise _unwritable(out, "no permission")
    return out


def write_table(out: Path, table: HeadShares) -> None:
    """Write a table in place of a file, at once. Raises ConfigError if that fails."""
    try:
        with atomic_write(out) as file:
            file.write(table.to_json().encode())
    except OSError as error:
        raise _unwritable(out, error.strerror) from error


def _unwritable(out: Path, why: str | None) -> ConfigError:
    return ConfigError(
        f"the table {str(out)!r} cannot be written: {why}; name another cache in XDG_CACHE_HOME, or a file"
    )
