"""`edgekv models --suggest`: well-known models, each with the cells that it would have under a ceiling."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

import edgekv
from edgekv.memory.sizes import MIB, check_ceiling, format_size, parse_ceiling
from edgekv.models.catalog import known_models
from edgekv.models.outline import outline_bytes, write_outline
from edgekv.models.suggested import SUGGESTED, SuggestedModel
from edgekv.planning.default_memory import ENOUGH_CELLS, most_default_bytes

from .render import measuring_bar
from .shared_options import ALONE

LEAST_RESIDENT = 0.75  # share of the layers; with fewer, replies take a third longer and more (docs/results/speed.md)


@dataclass(frozen=True)
class Suggestion:
    """A model, and what the planner finds for it.

    parameters: in millions
    cells: that each head keeps; None = the model does not fit
    resident: share of the layers whose weights stay in memory; the weights of the others are read for each token
    needed_bytes: planned peak, or the least ceiling that the model would fit
    command: how to get it
    """

    name: str
    family: str
    parameters: int
    quantization: str
    licence: str
    file_bytes: int
    n_ctx_train: int
    cells: int | None
    resident: float
    kv_type: str | None
    needed_bytes: int
    command: str


def suggest(memory: str | None, *, as_json: bool) -> None:
    """Print the suggestions for a ceiling, best first; None = the default ceiling of a user's own model."""
    ceiling = most_default_bytes() if memory is None else parse_ceiling(memory)
    check_ceiling(ceiling)
    found = sorted(_suggestions(ceiling), key=_rank)
    if as_json:
        print(json.dumps({"ceiling_bytes": ceiling, "models": [vars(it) for it in found]}))
        return
    console = Console(highlight=False)
    console.print(
        f"under {format_size(ceiling)}{'' if memory else ', which is half of what is free'}, best first:",
        soft_wrap=True,
    )
    console.print(_table(found))
    for it in found:
        if it.cells is not None:
            console.print(it.command, markup=False, soft_wrap=True)


def _rank(it: Suggestion) -> tuple[Any, ...]:
    """Return a sort key: the largest model with enough cells and layers in memory first, unfit models last."""
    cells = it.cells or 0
    serves = cells >= min(ENOUGH_CELLS, it.n_ctx_train // 2) and it.resident >= LEAST_RESIDENT
    return it.cells is None, not serves, -it.parameters if serves else -it.resident, -cells, it.needed_bytes


def _suggestions(ceiling: int) -> Iterator[Suggestion]:
    bundled = known_models()[0]
    with measuring_bar([outline_bytes(model) for model in SUGGESTED]) as bar:
        if bundled.path is not None:
            yield _suggestion(
                bundled.path,
                ceiling,
                **{"name": bundled.name, "family": "SmolLM2", "parameters": 135, "quantization": "Q4_1"},
                licence=bundled.licence,
                n_ctx_train=bundled.n_ctx_train,
                command="edgekv chat",
            )
        with tempfile.TemporaryDirectory(prefix="edgekv-") as folder:
            for model in SUGGESTED:
                yield _planned(Path(folder), model, ceiling)
                bar(outline_bytes(model), model.family)


def _planned(folder: Path, model: SuggestedModel, ceiling: int) -> Suggestion:
    path = folder / model.file_name
    write_outline(path, model)
    try:
        return _suggestion(
            path,
            ceiling,
            name=model.name,
            family=model.family,
            parameters=model.parameters,
            quantization=model.quantization,
            licence=model.licence,
            n_ctx_train=model.n_ctx_train,
            command=f"edgekv pull {model.name}",
        )
    finally:
        path.unlink()


def _suggestion(path: Path, ceiling: int, **facts: Any) -> Suggestion:
    """Plan a model, and return it with the plan's figures."""
    cells, kv_type, resident = None, None, 0.0
    try:
        plan = edgekv.plan(path, memory=ceiling, **ALONE)
        cells, kv_type, resident, needed = plan.budget_cells, plan.kv_type, plan.resident, plan.peak_bytes
    except edgekv.CeilingError as error:
        needed = error.required_bytes
    return Suggestion(
        file_bytes=path.stat().st_size, cells=cells, resident=resident, kv_type=kv_type, needed_bytes=needed, **facts
    )


def _table(found: list[Suggestion]) -> Table:
    columns = ("MiB", "in memory", "cells", "context")
    table = Table("model", "licence", *(Column(name, justify="right") for name in columns))
    for it in found:
        size = f"{it.parameters / 1000:.1f}B" if it.parameters >= 1000 else f"{it.parameters}M"
        cells = f"needs {-(-it.needed_bytes // MIB):,} MiB" if it.cells is None else f"{it.cells:,}"
        name = f"{it.family} {size} {it.quantization}"
        resident = "-" if it.cells is None else f"{it.resident:.0%}"
        table.add_row(name, it.licence, f"{-(-it.file_bytes // MIB):,}", resident, cells, f"{it.n_ctx_train:,}")
    return table
