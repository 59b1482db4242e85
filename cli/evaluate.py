"""`edgekv eval`: how well a model reads under a budget."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgekv.counting import counted
from edgekv.errors import ConfigError

from .evaluate_options import asking_options, grid_options, run_options
from .render import console, measuring_bar
from .sectioned_help import SectionedCommand
from .shared_options import gathered, one_way_to_share

if TYPE_CHECKING:  # the command imports it when it runs
    from edgekv.evals.grid import Grid, Measure

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

Model = Annotated[str | None, typer.Option("-m", "--model", help="Model of a suite. Default: the default model.")]
Texts = Annotated[int | None, typer.Option(help="Texts for every combination of a suite. Default: as the suite says.")]
Book = Annotated[Path | None, typer.Option(help="Text that a suite is over. Default: generated prose.")]


def _task(command: Callable[..., Any], without: Collection[str] = ()) -> Callable[..., Any]:
    with_grid = gathered(command, grid_options, "grid", without=without, section="What is compared")
    return gathered(with_grid, run_options, "how", section="Results and work")


def _asking(command: Callable[..., Any], without: Collection[str] = ()) -> Callable[..., Any]:
    """A task whose questions have known answers."""
    return _task(gathered(command, asking_options, "asking", section="Questions"), without)


@app.callback()
@functools.partial(gathered, options=run_options, into="how")
def suite(
    context: typer.Context,
    how: dict[str, Any],
    suite: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run a suite: quick, full, or a .toml file of your own.")
    ] = None,
    texts: Texts = None,
    model: Model = None,
    book: Book = None,
) -> None:
    """Measure how well a model reads under a budget: one task, or a suite of them."""
    if context.invoked_subcommand is not None:
        return
    from edgekv.evals.suite import load_suite

    if suite is None:
        raise ConfigError("nothing to measure; name a task, such as needle, or give --suite quick (edgekv eval --help)")
    run(load_suite(suite, model=model, book=book, samples=texts), **how)


@app.command(cls=SectionedCommand)
@_asking
def needle(
    grid: dict[str, Any],
    asking: dict[str, Any],
    how: dict[str, Any],
    depth: Annotated[
        list[float] | None, typer.Option(help="Where the needle lies, 0 to 1; repeatable. Default: anywhere.")
    ] = None,
    needles: Annotated[int, typer.Option(help="Facts in a text, each with a question of its own.")] = 1,
) -> None:
    """Find sentences that were planted in a text."""
    depths = {"depth": tuple(depth)} if depth else {}
    run([_grid("needle", grid | asking, **depths, needles=(needles,))], **how)


@app.command(cls=SectionedCommand)
@_asking
def ruler(
    grid: dict[str, Any],
    asking: dict[str, Any],
    how: dict[str, Any],
    task: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A task of RULER; repeatable. Default: all.")
    ] = None,
) -> None:
    """Find, trace and count in generated texts, as RULER does."""
    run([_grid("ruler", grid | asking, **{"kind": tuple(task)} if task else {})], **how)


@app.command(cls=SectionedCommand)
@functools.partial(_asking, without=("lengths", "samples", "seed", "book"))
def qa(
    grid: dict[str, Any],
    asking: dict[str, Any],
    how: dict[str, Any],
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="JSON lines, each with documents, a question and its answers.")
    ],
    samples: Annotated[int | None, typer.Option(help="Ask so many of the questions. Default: all.")] = None,
) -> None:
    """Answer questions about texts of your own."""
    run([_grid("qa", grid | asking | {"data": data, "samples": samples})], **how)


@app.command(cls=SectionedCommand)
@_task
def chat(
    grid: dict[str, Any],
    how: dict[str, Any],
    turns: Annotated[int, typer.Option(help="Turns of a chat, which quote --length tokens in all.")] = 200,
    facts: Annotated[int, typer.Option(help="Facts that are told in the first quarter of the turns.")] = 8,
    reply: Annotated[int, typer.Option(help="Most tokens of a reply.")] = 24,
) -> None:
    """Ask late in a long chat for facts that were told early."""
    run([_grid("chat", grid, turns=(turns,), facts=(facts,), reply=(reply,))], **how)


@app.command(cls=SectionedCommand)
@_task
def perplexity(grid: dict[str, Any], how: dict[str, Any]) -> None:
    """Measure how well a text is predicted while its tokens are evicted, compared with the full cache."""
    run([_grid("perplexity", grid)], **how)


def _grid(task: str, options: dict[str, Any], **params: tuple[Any, ...]) -> Grid:
    """The grid that the options of a command spell."""
    from edgekv.evals.grid import Grid

    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return Grid(task=task, **fields, params=params)


def run(
    grids: list[Grid],
    *,
    results: Path,
    baseline: str | None,
    as_json: bool,
    threads: int | None,
    gpu_layers: int,
    workers: int,
    cluster: str | None,
    rpc: None,
) -> None:
    """Measure what is not known yet; report everything, also when Ctrl-C stops it."""
    from edgekv.evals.grid import distinct_cases
    from edgekv.evals.grid import run as measured_cases
    from edgekv.evals.results import Results

    from . import evaluate_report as report

    cases = distinct_cases(grids)
    names = list(dict.fromkeys(case.setting.name for case in cases if not case.setting.is_full))
    if baseline is not None and baseline not in names:
        raise ConfigError(f"baseline={baseline!r} is not measured; possible: {', '.join(names)}")
    stopped = False
    with Results(results) as store:
        try:
            # the length of a text that is read as it is comes later
            with measuring_bar([case.length or 1 for case in cases]) as bar:
                for case in measured_cases(cases, store, _how(threads, gpu_layers, workers, cluster)):
                    bar(case.length or 1, f"{case.task.name}: {case.setting.name}")
        except KeyboardInterrupt:
            stopped = True
        found = ((case, store.get(case.config())) for case in cases)
        measured = [(case, result) for case, result in found if result is not None]
    if as_json:
        print(report.as_json(measured, baseline))
    else:
        report.print_tables(measured, baseline)
        where = f"results of {len(measured):,} of {counted(len(cases), 'case')} are in {results}"
        console.print(where, style="dim", markup=False, soft_wrap=True)
    if stopped:
        raise KeyboardInterrupt


def _how(threads: int | None, gpu_layers: int, workers: int, cluster: str | None) -> Measure:
    """Return the function that measures cases: in this process, in others of this machine, or on a cluster."""
    from edgekv.evals import grid, spread

    one_way_to_share(workers, cluster)
    if cluster is not None:
        return functools.partial(spread.over_cluster, scheduler=cluster, threads=threads, gpu_layers=gpu_layers)
    if workers:
        return functools.partial(spread.over_processes, workers=workers, threads=threads or 1, gpu_layers=gpu_layers)
    return functools.partial(grid.in_process, threads=threads, gpu_layers=gpu_layers)
