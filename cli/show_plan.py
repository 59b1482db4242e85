"""`edgekv plan`: what would fit, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

import edgekv
from edgekv.memory.sizes import format_size
from edgekv.options import UBATCH
from edgekv.planning.default_memory import default_memory_line
from edgekv.planning.streaming_cost import streaming_cost

from .render import FEW_CELLS, archive_line, loading
from .shared_options import ALONE, AsJson, with_common_options

BOUNDS = {
    "budget": "as asked for",
    "trained context": "the model's trained context",
    "speed": "enough: more memory makes it faster first, and --budget names more cells",
    "memory": "what the ceiling leaves",
    "device_memory": "what the device's ceiling leaves",
}


@with_common_options
def plan(
    runtime: dict[str, Any],
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")] = None,
    swap_memory: Annotated[
        str | None,
        typer.Option(help="Memory for swapped-out sessions. Default: what is left free."),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Sessions that share each step; each has cells of its own.")] = 1,
    grammars: Annotated[
        bool, typer.Option("--grammars", help="Plan memory for replies that follow a grammar or a JSON schema.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the budget that fits the ceiling, where every byte goes, and what else would fit.

    MODEL is the same as --model. A model hf:OWNER/MODEL:QUANT that is not here is planned from its header on the hub.
    """
    if named is not None:
        if runtime["model"] not in (None, named):
            raise edgekv.ConfigError(f"model={runtime['model']!r} and {named!r} are two models; name one")
        runtime["model"] = named
    with loading():
        survey = edgekv.survey(**ALONE, **runtime, swap_memory=swap_memory, parallel=parallel, grammars=grammars)
    if as_json:
        print(json.dumps(survey.as_dict()))
        return
    made = survey.plan
    console = Console(highlight=False)
    console.print(f"{made.model.name} under {format_size(made.ceiling_bytes)}", markup=False, soft_wrap=True)
    if runtime["memory"] is None and (line := default_memory_line(made)):
        console.print(line, soft_wrap=True)
    console.print(_parts(made))
    if made.devices:
        console.print(_devices(made))
    if parallel > 1:
        console.print(f"{parallel} sessions share each step; what follows is about one of them", soft_wrap=True)
    for line in _lines(survey):
        console.print(line, soft_wrap=True)
    if made.cell_bytes:
        console.print(_alternatives(survey))


def _parts(made: edgekv.Plan) -> Table:
    table = Table("part")
    table.add_column("bytes", justify="right")
    for name, n_bytes in asdict(made.parts).items():
        table.add_row(name, format_size(n_bytes))
    table.add_section()
    table.add_row("planned peak", format_size(made.peak_bytes))
    table.add_row("free", format_size(made.ceiling_bytes - made.peak_bytes))
    return table


def _devices(made: edgekv.Plan) -> Table:
    """Return the table of devices: memory planned on each, and its limit."""
    sizes = ("layers", "weights", "kv", "compute", "scoring", "serving", "context", "planned", "may be")
    table = Table("device", *(Column(name, justify="right") for name in sizes))
    for share in made.devices:
        layers = f"{share.layers} + output" if share.output else f"{share.layers}"
        parts = (share.weights, share.kv, share.compute, share.scoring, share.serving, share.context, share.total)
        allowed = "-" if share.allowed_bytes is None else format_size(share.allowed_bytes)
        table.add_row(escape(str(share)), layers, *map(format_size, parts), allowed)
    return table


def _lines(survey: edgekv.Survey) -> Iterator[str]:
    made, more = survey.plan, survey.with_more
    if not made.cell_bytes:
        yield "no layer attends to the whole text: nothing grows with it, and nothing is evicted"
        return
    yield (
        f"budget {made.budget_cells:,} cells per head + {made.block} spare ({made.kv_type}, "
        f"{made.cell_bytes:,} bytes a cell over all heads); trained context {made.n_ctx_train:,} tokens"
    )
    if survey.bound_by != "trained context" and made.budget_cells < FEW_CELLS:
        yield (
            "these are few: asked about a text, the default model found 19 of 20 facts with 256 cells and 12 with 128; "
            "give it more memory, or take a smaller model"
        )
    if cost := streaming_cost(made, UBATCH):
        yield str(cost)
    part, n_bytes = survey.largest_part, asdict(made.parts)[survey.largest_part]
    yield f"the budget is {BOUNDS[survey.bound_by]}; beside the weights, {part} takes most ({format_size(n_bytes)})"
    if (more.budget_cells, more.kv_type, more.block) == (made.budget_cells, made.kv_type, made.block):
        yield f"{format_size(survey.more_bytes)} more would change nothing"
    else:
        yield (
            f"with {format_size(survey.more_bytes)} more: {more.budget_cells:,} cells ({more.kv_type}, "
            f"block {more.block})"
        )
    yield (
        f"what grows with a text: cells of all {made.n_ctx_train:,} tokens would take "
        f"{format_size(made.n_ctx_train * made.cell_bytes)}, these take {format_size(made.kv_bytes)}"
    )
    yield "a cell holds the key and the value of one token in one head; every head of every layer has its own"
    yield f"a block is the {made.block} tokens that are read at once; then the best cells are kept, up to the budget"
    yield f"spare cells, {made.block} for each head, take the tokens of a block until then"
    if line := archive_line(made):
        yield line
    yield f"a session that is swapped out takes at most {format_size(made.session_bytes)}"
    if made.parts.state:
        yield f"what does not: windows and states, {format_size(made.parts.state)}"


def _alternatives(survey: edgekv.Survey) -> Table:
    """Cells of every cache type and block; the columns are blocks."""
    found = {(other.kv_type, other.block): other.budget_cells for other in survey.alternatives}
    blocks = sorted({block for _, block in found}, reverse=True)
    table = Table("cells that would fit", *(f"block {block}" for block in blocks))
    for kv_type in dict.fromkeys(kv_type for kv_type, _ in found):
        cells = (found[kv_type, block] for block in blocks)
        table.add_row(kv_type, *("-" if n is None else f"{n:,}" for n in cells))
    return table
