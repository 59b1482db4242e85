"""`edgekv plan`: what would fit, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import edgekv
from edgekv.sizes import format_size

from .options import with_common_options


@with_common_options
def plan(
    runtime: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show the budget that fits the ceiling, and where every byte goes."""
    made = edgekv.plan(**runtime)
    if as_json:
        print(json.dumps(made.as_dict()))
        return
    console = Console()
    console.print(f"{made.model.name} under {format_size(made.ceiling_bytes)}", soft_wrap=True, highlight=False)
    table = Table()
    table.add_column("part")
    table.add_column("bytes", justify="right")
    for name, n_bytes in asdict(made.parts).items():
        table.add_row(name, format_size(n_bytes))
    table.add_section()
    table.add_row("planned peak", format_size(made.peak_bytes))
    table.add_row("free", format_size(made.ceiling_bytes - made.peak_bytes))
    console.print(table)
    console.print(
        f"budget {made.budget_cells:,} cells per head + {made.block} spare ({made.kv_type}, "
        f"{made.cell_bytes:,} bytes a cell over all heads); trained context {made.n_ctx_train:,} tokens",
        soft_wrap=True,
    )
