"""`edgekv heads`: measures how many cells each head of a model needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import edgekv
from edgekv.models.catalog import find_model

from .render import console


def heads(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Name or path. Default: the default model.")
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="Text in UTF-8 to measure on; may be given again. Default: made."),
    ] = None,
    passages: Annotated[int, typer.Option(min=1, help="Passages to read, from the texts in turn.")] = 2,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of a passage.")] = 1024,
    cells: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cells of a head, on average. Default: 1/4 of the tokens; 1/8 for models below 500 million weights.",
        ),
    ] = None,
    memory: Annotated[str, typer.Option(help="Memory ceiling.")] = "100%",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one for every processor.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File to write. Default: beside the model, or in the cache; there it is found."
        ),
    ] = None,
) -> None:
    """Measure which heads of a model need many cells, for policies with +heads.

    Every passage is read twice, as the policy replay does. The table goes into a small file beside the model, or into
    the cache where that folder cannot be written.
    """
    from edgekv.evals.head_needs import measure
    from edgekv.evals.measured_heads import writable_path_in_cache, write_table
    from edgekv.models.head_shares import path_beside

    path = find_model(model)
    if out is None:
        out = path_beside(path)
        if not os.access(out.parent, os.W_OK):
            out = writable_path_in_cache(path)
    elif not os.access(out.parent, os.W_OK):  # said before it is measured
        raise edgekv.ConfigError(f"out={str(out)!r} cannot be written; name a file in another folder")
    found = measure(
        path,
        text or (),
        n_passages=passages,
        n_tokens=tokens,
        budget=cells,
        memory=memory,
        threads=threads,
        told=lambda i: console.print(f"passage {i + 1} of {passages}"),
    )
    write_table(out, found)
    all_cells = [n for layer in found.cells for n in layer]
    what = f"{len(all_cells)} heads, {min(all_cells):g} to {max(all_cells):g} cells each"
    console.print(f"{out}: {what}", markup=False, soft_wrap=True)
