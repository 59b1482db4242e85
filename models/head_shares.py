"""How many cells each KV head of a model needs: a table that was measured once, in a file beside the model.

{"format": "edgekv head shares", "version": 1, "cells": [[102, 84, 58], ...], "budget": 256, ...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError

from .registry import known_models

__all__ = ["HeadShares", "find_shares", "has_shares", "path_beside", "read_shares"]

FORMAT, VERSION = "edgekv head shares", 1
KNOWN = Path(__file__).with_name("known_shares")  # of models that have a name


@dataclass(frozen=True, slots=True)
class HeadShares:
    """Cells that each KV head kept, layer by layer: the mean over some texts.

    budget   cells of a head on average; policy  that divided them
    n_texts, n_tokens  texts that were read, and tokens of each
    """

    cells: tuple[tuple[float, ...], ...]
    budget: int
    policy: str
    n_texts: int
    n_tokens: int

    def to_json(self) -> str:
        """The text of a file that `read_shares` reads."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}) + "\n"


def path_beside(model: Path) -> Path:
    """Where the table of a model is looked for."""
    return model.with_name(f"{model.name}.heads.json")


def find_shares(model: Path, n_heads: Sequence[int]) -> HeadShares:
    """The table beside a model's file, or the one that comes with edgekv; n_heads: KV heads of each layer.

    Raises ConfigError where there is none, and where it is of another model.
    """
    path = _table(model)
    if path is None:
        raise ConfigError(
            f"heads divides cells by a table of the model, and {str(path_beside(model))!r} is not there; make it with: "
            f"edgekv heads --model {model} --text BOOK, or leave heads out of the policy"
        )
    shares = read_shares(path)
    found = [len(layer) for layer in shares.cells]
    if found != list(n_heads):
        raise ConfigError(
            f"{str(path)!r} is of a model with {sum(found)} KV heads in {len(found)} layers, but {model.name} has "
            f"{sum(n_heads)} in {len(n_heads)}; remove it, and make one with: edgekv heads --model {model} --text BOOK"
        )
    return shares


def has_shares(model: Path) -> bool:
    """Whether there is a table for a model."""
    return _table(model) is not None


def _table(model: Path) -> Path | None:
    """The file of the table of a model, if there is one."""
    file = model.resolve().name, model.stat().st_size
    known = (KNOWN / f"{each.name}.json" for each in known_models() if file == (each.file_name, each.file_bytes))
    return next((path for path in (path_beside(model), *known) if path.is_file()), None)


def read_shares(path: Path) -> HeadShares:
    """Raises ConfigError where the file holds no table."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("format") != FORMAT or data.pop("version") != VERSION:
            raise ValueError("another format")
        cells = tuple(tuple(map(_number, layer)) for layer in data.pop("cells"))
        return HeadShares(cells, **data)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            f"{str(path)!r} is no table of head shares; remove it, or make it again with: edgekv heads"
        ) from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("no number from 0 on")
    return float(value)
