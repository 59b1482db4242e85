"""Options of the commands of `edgekv eval`: for the grid, and for running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared_options import AsJson, NoRpc


def grid_options(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Path of a GGUF model, or a known name (`edgekv models`).")
    ] = None,
    policies: Annotated[
        list[str],
        typer.Option(
            "--policy",
            metavar="SPEC",
            help="Policy. default = the one edgekv chooses, full = evict nothing. Repeatable.",
        ),
    ] = ["full", "default"],  # noqa: B006
    budgets: Annotated[
        list[int], typer.Option("--budget", help="Cells that each layer and head keeps; repeatable.")
    ] = [512],  # noqa: B006
    lengths: Annotated[list[int], typer.Option("--length", help="Tokens of a text; repeatable.")] = [1000],  # noqa: B006
    blocks: Annotated[list[int], typer.Option("--block", help="Tokens between two evictions; repeatable.")] = [128],  # noqa: B006
    kv_types: Annotated[list[str], typer.Option("--kv-type", help="f16, q8_0 or q4_0; repeatable.")] = ["f16"],  # noqa: B006
    focus: Annotated[
        list[str],
        typer.Option(help="What a text is read for: off, question, ... (docs/evaluation.md), or any other text."),
    ] = ["off"],  # noqa: B006
    focus_policy: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Scores by the question. Default: the policy if it reads queries."),
    ] = None,
    recent: Annotated[
        int | None, typer.Option(help="Newest tokens that are never evicted. Default: 32; none with focus.")
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Keep what is evicted on the disk, at most so much, and recall by the question."
        ),
    ] = None,
    reposition: Annotated[str, typer.Option(help="Turn keys to adjacent positions: auto, always, never.")] = "auto",
    samples: Annotated[int, typer.Option(help="Texts for every combination.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the first text; each further text has the next seed.")] = 0,
    book: Annotated[
        Path | None, typer.Option(help="A long text in UTF-8 that samples are cut from. Default: generated prose.")
    ] = None,
) -> None:
    """Never called: its parameters are the fields of a `Grid`."""


def asking_options(
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Read each text in a process of its own under this ceiling, and tell speed and peak. Default: no.",
        ),
    ] = None,
    metrics: Annotated[
        list[str],
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Also measure answer-nll: how unlikely right answers are.",
        ),
    ] = [],  # noqa: B006
) -> None:
    """Never called: its parameters are fields of a `Grid` whose task asks questions."""


def run_options(
    results: Annotated[
        Path, typer.Option(metavar="FILE", help="File of results; what is in it is not measured again.")
    ] = Path("edgekv-eval.jsonl"),
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Policy to compare the others with, as named in the table. Default: the first."
        ),
    ] = None,
    as_json: AsJson = False,
    threads: Annotated[int | None, typer.Option(help="Threads. Default: one for every processor.")] = None,
    gpu_layers: Annotated[int, typer.Option(min=0, help="Layers to put on GPUs. Default: none.")] = 0,
    workers: Annotated[
        int, typer.Option(help="Processes that share the work; each takes --threads, or 1. Needs the extra dask.")
    ] = 0,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler whose workers share the work.")
    ] = None,
    rpc: NoRpc = None,
) -> None:
    """Declare the parameters of `run`. Nothing calls this."""
