"""The first use of a model with few named cells: a table of its heads is measured, which divides them from then on."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

import edgekv
from edgekv.models.catalog import find_model

from .render import loading, reading_bar, say
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
    *("memory", "device_memory", "threads", "repack", "mmap", "resident"),
    *("gpu_layers", "rpc", "rpc_timeout", "tensor_split"),
)


def measure_at_first_use(runtime: dict[str, Any], *, known: bool = False) -> None:
    """Measure the table of the model's heads if the default policy would go by one and there is none, and say so.

    runtime: the common options
    known: whether a question is known while texts are read, so that fewer cells are divided

    Everything happens in worker processes under the ceiling of the options. Cells stay even, with a line that says
    why, if the model or the ceiling does not allow it. A command that fails anyhow measures nothing.
    """
    from edgekv.options import divides_known  # other commands show their help without these
    from edgekv.planning.choice import lacks_table, may_lack_table

    if known and not divides_known(runtime["budget"]):
        return
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
