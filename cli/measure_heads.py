"""Tables of the heads of a model: `edgekv heads` measures one, and so does the first use with few named cells.

A table says how many cells each head needs, and divides them from then on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.counting import counted
from edgekv.models.catalog import find_model

from .render import console, loading, reading_bar, say
from .shared_options import ALONE
from .wording import worded

MeasureHeads = Annotated[
    bool,
    typer.Option(
        "--measure-heads/--no-measure-heads",
        envvar="EDGEKV_MEASURE_HEADS",
        help="With --budget up to 1024: measure a model's table of heads (`edgekv heads`) when it is used first.",
    ),
]

# options that say where a model lies and who computes
PLACES = (
    *("memory", "device_memory", "gpu_context", "threads", "repack", "mmap", "resident"),
    *("gpu_layers", "rpc", "rpc_timeout", "tensor_split"),
)


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
    the cache if that folder cannot be written.
    """
    from edgekv.evals.head_needs import measure
    from edgekv.evals.measured_heads import writable_path_in_cache, write_table
    from edgekv.models.head_shares import path_beside

    path = find_model(model)
    if out is None:
        out = path_beside(path)
        if not os.access(out.parent, os.W_OK):
            out = writable_path_in_cache(path)
    elif out.is_dir() or not os.access(out.parent, os.W_OK):  # said before it is measured
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
    what = f"{counted(len(all_cells), 'head')}, {min(all_cells):g} to {max(all_cells):g} cells each"
    console.print(f"{out}: {what}", markup=False, soft_wrap=True)


def measure_at_first_use(runtime: dict[str, Any]) -> None:
    """Measure the table of the model's heads if the default policy would go by one and there is none, and say so.

    runtime: the common options

    Everything happens in worker processes under the ceiling of the options. Cells stay even, with a line that says
    why, if the model or the ceiling does not allow it. A command that fails anyhow measures nothing.
    """
    from edgekv.planning.choice import lacks_table, may_lack_table  # other commands show their help without these

    try:
        path = find_model(runtime["model"])
        if not may_lack_table(path, runtime["policy"], runtime["budget"]):
            return
        with loading():
            plan = edgekv.plan(**ALONE, **runtime | {"isolated": True})
    except edgekv.EdgeKVError:  # opening the runtime raises it again
        return
    if not (plan.cell_bytes and lacks_table(plan)):
        return
    from edgekv.evals.measured_heads import N_TOKENS, measure_heads

    say(
        f"{path.name} has no table of its heads: it is measured now, once, by reading {N_TOKENS:,} tokens twice; "
        "--no-measure-heads leaves it out"
    )
    started = time.monotonic()
    try:
        with reading_bar() as bar:
            out = measure_heads(path, progress=bar, **{name: runtime[name] for name in PLACES})
    except edgekv.EdgeKVError as error:
        say(f"all heads get equally many cells: {worded(str(error))}")
    else:
        say(f"measured in {time.monotonic() - started:.0f} s: {out}")
