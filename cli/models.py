"""`edgekv models`: the models known by name."""

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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array and nothing else.")] = False,
) -> None:
    """List the models known by name; any other GGUF file is named by its path."""
    known = known_models()
    if as_json:
        print(json.dumps([asdict(model) | {"installed": model.is_installed} for model in known]))
        return
    table = Table("name", "size", "trained context", "licence", "installed")
    for model in known:
        installed = "yes" if model.is_installed else "no"
        table.add_row(model.name, format_size(model.file_bytes), f"{model.n_ctx_train:,}", model.licence, installed)
    Console().print(table)
