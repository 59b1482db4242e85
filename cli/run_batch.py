"""`edgekv batch`: a file of requests, answered once each."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgekv.counting import counted
from edgekv.extras import needed
from edgekv.memory.sizes import format_size
from edgekv.options import DEFAULT_MEMORY

from .render import console, loading, measuring_bar, packed
from .shared_options import AsJson, common, gathered, one_way_to_share

if TYPE_CHECKING:  # the command imports it when it runs
    from edgekv.batch.batch import Batch

FAILED = 1  # exit status if some results are errors


@functools.partial(gathered, options=common, into="runtime", without=("isolated", "memory"))
def batch(
    requests: Annotated[Path, typer.Argument(help="Requests: JSON lines in OpenAI's batch format.")],
    runtime: dict[str, Any],
    results: Annotated[
        Path, typer.Option("-o", "--results", metavar="FILE", help="Where results are appended, a line for each.")
    ],
    workers: Annotated[int, typer.Option(min=1, help="Workers of this machine; each has --memory for itself.")] = 1,
    memory: Annotated[str, typer.Option(help="Memory ceiling of each worker: 256MiB, 1.5GB, 25%.")] = DEFAULT_MEMORY,
    parallel: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="as many as cost no cells, at most 4; 1 beside workers",
            help="Requests that one model in this process answers at a time, each with cells of its own.",
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler whose workers share the work instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a file of requests, each once. A batch that was stopped goes on with the requests that have no result.

    Each worker has the model in a process of its own, and --memory is the ceiling of each. If the ceiling has room for
    several slots, one model in this process answers as many requests at a time. Requests that begin alike are answered
    one after the other, so their common beginning is read once.
    """
    for module in ("starlette", "pydantic"):
        needed(module, "server")
    one_way_to_share(workers - 1, cluster)
    from edgekv.batch.batch import Batch

    if parallel is None and (workers > 1 or cluster is not None):
        parallel = 1
    with loading():
        opened = Batch(requests, results, memory=memory, **runtime, parallel=parallel)
    with opened as under_way:
        try:
            with measuring_bar(under_way.prompt_plan.n_tokens) as bar:
                for answered in under_way.run(workers=workers, cluster=cluster):
                    bar(under_way.prompt_plan.n_tokens[answered.number], answered.custom_id)
        finally:
            _report(under_way, as_json=as_json)
        if any(under_way.results.answered.values()):
            raise typer.Exit(FAILED)


def _report(batch: Batch, *, as_json: bool) -> None:
    """Print the progress and the statistics of a batch."""
    answered, stats = batch.results.answered, batch.stats
    n_failed = sum(answered.values())
    if as_json:
        figures = {"requests": len(batch), "results": len(answered), "failed": n_failed, **vars(stats)}
        print(json.dumps(figures | {"ceiling_bytes": batch.config.options["memory"]}))
        return
    said = f"results of {len(answered):,} of {counted(len(batch), 'request')} are in {batch.results.path}"
    if n_failed:
        said += f", {n_failed:,} of them an error"
    if len(answered) < len(batch):
        said += "; the same command goes on from there"
    console.print(said, soft_wrap=True, markup=False)
    if stats.answered:
        ceiling, is_far = format_size(batch.config.options["memory"]), batch.config.chosen.isolated
        parts = [
            f"{stats.answered:,} answered now",
            f"prefixes read once: {stats.prefixes:,}, {counted(stats.prefix_tokens, 'token')}",
            f"not read again: {counted(stats.shared_tokens, 'token')}",
            f"peak {format_size(stats.peak_bytes)} of {ceiling}" + (" for each worker" if is_far else ""),
        ]
        for line in packed(parts, console.width):
            console.print(f"[dim]{line}[/dim]", soft_wrap=True)
