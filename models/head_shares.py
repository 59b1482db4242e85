"""Cells that each KV head of a model needs: a table that was measured once, in a file beside the model or in the cache.

{"format": "edgekv head shares", "version": 1, "cells": [[102, 84, 58], ...], "budget": 256, ...}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError, ModelError

from .catalog import known_as
from .sampled_digest import sampled_digest

__all__ = [
    "HeadShares",
    "check_shares",
    "find_shares",
    "has_shares",
    "path_beside",
    "path_in_cache",
    "read_shares",
    "shares_digest",
]

FORMAT, VERSION = "edgekv head shares", 1
MOST_CELLS = 1 << 30  # the most cells of a head
MOST_BYTES = 4 << 20  # the most bytes of a file
MOST_SHOWN = 40  # characters of a value in an error
KNOWN = Path(__file__).with_name("known_shares")  # tables of models that have a name


@dataclass(frozen=True, slots=True)
class HeadShares:
    """Cells that each KV head kept, layer by layer: the mean over some texts.

    budget   cells of a head on average; policy  the policy that divided them
    n_texts, n_tokens  texts that were read, and tokens of each
    model    `sampled_digest` of the model's file; "" = not noted
    """

    cells: tuple[tuple[float, ...], ...]
    budget: int
    policy: str
    n_texts: int
    n_tokens: int
    model: str = ""

    def to_json(self) -> str:
        """Return the text of a file for `read_shares`."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}) + "\n"


def path_beside(model: Path) -> Path:
    """Return the first path to look for a model's table."""
    return model.with_name(f"{model.name}.heads.json")


def path_in_cache(model: Path) -> Path:
    """Return the path of a model's table in the user's cache, by the model's digest.

    Raises InvalidModelError if the model cannot be read.
    """
    import platformdirs  # few models need it

    return Path(platformdirs.user_cache_dir("edgekv", appauthor=False)) / "heads" / f"{sampled_digest(model)}.json"


def find_shares(model: Path, n_heads: Sequence[int]) -> HeadShares:
    """Return the table beside a model's file, else that in the cache, else the one that comes with edgekv.

    n_heads: KV heads of each layer

    Raises ConfigError if there is no table, and for a table of another model.
    """
    path, shares = _there(model)
    if [len(layer) for layer in shares.cells] != list(n_heads):
        raise _of_another(path, shares, model, len(n_heads), sum(n_heads))
    return shares


def check_shares(model: Path, n_layers: int, n_heads: int) -> None:
    """Raise ConfigError if a model has no table, or a table with another number of layers or KV heads."""
    path, shares = _there(model)
    if (len(shares.cells), sum(map(len, shares.cells))) != (n_layers, n_heads):
        raise _of_another(path, shares, model, n_layers, n_heads)


def _there(model: Path) -> tuple[Path, HeadShares]:
    """Return the table of a model, and its file. Raises ConfigError if there is none."""
    found = _found(model)
    if found is None:
        raise ConfigError(
            f"heads divides cells by a table of the model, and {str(path_beside(model))!r} is not there; make it with: "
            f"edgekv heads --model {model}, or leave heads out of the policy"
        )
    return found


def _of_another(path: Path, shares: HeadShares, model: Path, n_layers: int, n_heads: int) -> ConfigError:
    return ConfigError(
        f"{str(path)!r} is of a model with {sum(map(len, shares.cells))} KV heads in {len(shares.cells)} layers, but "
        f"{model.name} has {n_heads} in {n_layers}; remove it, and make one with: edgekv heads --model {model}"
    )


def shares_digest(model: Path) -> str | None:
    """Return a digest of a model's table, wherever it lies, or None. Raises ConfigError for a damaged one."""
    found = _found(model)
    return None if found is None else hashlib.blake2b(found[1].to_json().encode(), digest_size=8).hexdigest()


def has_shares(model: Path) -> bool:
    """Return True if there is a table for a model."""
    return path_beside(model).is_file() or _found(model) is not None


def _found(model: Path) -> tuple[Path, HeadShares] | None:
    """Return the table of a model, and its file; None if there is none. Raises ConfigError for a damaged one."""
    beside, known = path_beside(model), known_as(model)
    if beside.is_file():
        return beside, read_shares(beside)
    if (cached := _cached(model)) is not None:
        return cached
    path = None if known is None else KNOWN / f"{known.name}.json"
    return None if path is None or not path.is_file() else (path, read_shares(path))


def _cached(model: Path) -> tuple[Path, HeadShares] | None:
    """Return the table in the cache, and its file; None for a damaged table, or a table of another model."""
    if not model.is_file():
        return None
    with suppress(ConfigError, ModelError):
        path = path_in_cache(model)
        if path.is_file() and (shares := read_shares(path)).model == path.stem:
            return path, shares
    return None


def read_shares(path: Path) -> HeadShares:
    """Read a table. Raises ConfigError if the file holds none, or a number that no head could keep."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    if len(raw) > MOST_BYTES:
        raise _refused(path, f"has more than the {MOST_BYTES >> 20} MiB that a table may have")
    try:
        data = json.loads(raw.decode())
        if data.pop("format") != FORMAT or data.pop("version") != VERSION:
            raise ValueError("another format")
        shares = HeadShares(tuple(map(tuple, data.pop("cells"))), **data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _refused(path, "is no table of head shares") from None
    for layer, cells in enumerate(shares.cells):
        for head, value in enumerate(cells):
            _check(path, f"cells of head {head} of layer {layer}", value)
    for name in ("budget", "n_texts", "n_tokens"):
        _check(path, name, getattr(shares, name), whole=True)
    if not isinstance(shares.policy, str):
        raise _refused(path, "does not name the policy that it was made with")
    if not isinstance(shares.model, str):
        raise _refused(path, "does not name the model that it is of")
    return replace(shares, cells=tuple(tuple(map(float, cells)) for cells in shares.cells))


def _check(path: Path, name: str, value: Any, *, whole: bool = False) -> None:
    """Raise ConfigError for a value that a table may not hold."""
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_CELLS:
        shown = repr(value) if isinstance(value, int | float | str) else f"a {type(value).__name__}"
        shown = shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."
        kind = "whole number" if whole else "number"
        raise _refused(path, f"says {shown} for {name}, where a {kind} in [0, {MOST_CELLS}] is possible")


def _refused(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{str(path)!r} {why}; remove it, or make it again with: edgekv heads")
