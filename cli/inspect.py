"""`edgekv inspect`: what was kept of a text."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.generation.request import INSTRUCTION
from edgekv.warmup import reserve

from .files import text_files
from .render import console, console_of, reading_bar
from .shared_options import AsJson, Raw, System, cells_are_here, opened, with_common_options

REPORT_BYTES = 6 << 20  # bytes that the report copies of some thousand tokens


@with_common_options
def inspect(
    runtime: dict[str, Any],
    question: Annotated[
        str | None, typer.Argument(help="Question to read the files for, as in `ask`. Default: read them as they are.")
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Texts or documents to read: names, patterns, folders; - for stdin."),
    ] = None,
    system: System = None,
    raw: Raw = False,
    max_tokens: Annotated[
        int, typer.Option(help="Answer first, with at most this many tokens. Default: no answer.")
    ] = 0,
    layer: Annotated[
        list[int] | None, typer.Option(help="Layer to show head by head, and to study keys of; repeatable.")
    ] = None,
    head: Annotated[list[int] | None, typer.Option(help="KV head of these layers; repeatable.")] = None,
    keys: Annotated[bool, typer.Option("--keys/--no-keys", help="Study the keys of the chosen heads.")] = True,
    longest: Annotated[
        int | None, typer.Option(help="Most tokens that prompt and answer may have together. Default: 8,192.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page of HTML.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which tokens of a text are kept by which layers and heads, and what becomes of their keys."""
    from edgekv.inspection import observe, render_page  # takes memory that other commands can spare

    from .kept_text import print_observation

    with ExitStack() as stack:
        files = stack.enter_context(text_files(file))
        if question is None and not files:
            raise edgekv.InputError("there is nothing to inspect; give a text file (-f FILE), a question, or both")
        cells_are_here(runtime["rpc"])
        stack.callback(reserve(REPORT_BYTES))
        rt = stack.enter_context(opened(runtime))
        progress = stack.enter_context(reading_bar())
        found = observe(
            rt,
            question,
            files,
            system=system,
            layers=layer or (),
            heads=head or (),
            keys=keys,
            max_tokens=max_tokens,
            instruction="" if raw else INSTRUCTION,
            longest=longest,
            progress=progress,
        )
    if html is not None:
        _write(html, render_page(found))
    if as_json:
        print(json.dumps(found.as_dict()))
        return
    print_observation(console_of(stderr=False), found, layer or ())
    if html is not None:
        console.print(f"wrote {html}", soft_wrap=True, markup=False)


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise edgekv.InputError(f"{path} cannot be written: {error.strerror or error}; give another --html") from error
