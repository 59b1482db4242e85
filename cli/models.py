"""`edgekv models`: the models known by name, and the architectures that run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from edgekv.memory.sizes import format_size
from edgekv.models import known_models


def models(
    architectures: Annotated[
        bool,
        typer.Option("--architectures", help="List the architectures instead: which run, what is evicted of them."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array and nothing else.")] = False,
) -> None:
    """List the models known by name; any other GGUF file is named by its path."""
    if architectures:
        _list_architectures(as_json)
        return
    known = known_models()
    if as_json:
        print(json.dumps([asdict(model) | {"installed": model.is_installed} for model in known]))
        return
    table = Table("name", "size", "trained context", "licence", "installed")
    for model in known:
        installed = "yes" if model.is_installed else "no"
        table.add_row(model.name, format_size(model.file_bytes), f"{model.n_ctx_train:,}", model.licence, installed)
    Console().print(table)


def _list_architectures(as_json: bool) -> None:
    from edgekv.models.architectures import ARCHITECTURES, KINDS, refused_table, running_table

    if as_json:
        print(json.dumps([asdict(it) | asdict(KINDS[it.kind]) for it in ARCHITECTURES]))
        return
    for heading, *rows in (running_table(), refused_table()):
        table = Table(*heading)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
