"""Repeat the tables of a paper: `python -m bench.papers caote --texts 1 --book BOOK`."""

from __future__ import annotations

import functools
import sys
from typing import Annotated, Any

import typer

import edgekv
from edgekv.cli.evaluate import Book, Model, Texts, run
from edgekv.cli.evaluate_options import run_options
from edgekv.cli.shared_options import gathered
from edgekv.evals.suite import load_suite

from .grid import SUITES, PaperGrid

app = typer.Typer(rich_markup_mode=None)


@app.command()
@functools.partial(gathered, options=run_options, into="how")
def papers(
    how: dict[str, Any],
    name: Annotated[
        str,
        typer.Argument(metavar="SUITE", help="keydiff, caote, ahakv, criticalkv, adakv, policies, or a .toml file."),
    ],
    texts: Texts = None,
    model: Model = None,
    book: Book = None,
) -> None:
    """Run a suite of a paper, or one of your own with the tasks, the metric and the oracle of this package."""
    run(load_suite(name, model=model, book=book, samples=texts, folder=SUITES, kind=PaperGrid), **how)


if __name__ == "__main__":
    try:
        app()
    except edgekv.EdgeKVError as error:
        sys.exit(f"bench.papers: {error}")
