"""`edgekv read`: texts that are read once, to be asked about again and again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from edgekv.memory.sizes import format_size
from edgekv.store.named import writable_path_of

from .files import text_files
from .options import System, opened, with_common_options
from .render import console, print_footer, reading_bar


@with_common_options
def read(
    runtime: dict[str, Any],
    save: Annotated[str, typer.Option("--save", metavar="NAME", help="Name to save it under, for `ask --from NAME`.")],
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="Text file to read; repeatable; - for stdin.")
    ] = None,
    question: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Question to read with; again for more. Default: a general one."),
    ] = None,
    system: System = None,
) -> None:
    """Read text files of any length, and save what was kept: `ask --from NAME` asks about it, also next week."""
    path = writable_path_of(save)
    with ExitStack() as stack:
        files = stack.enter_context(text_files(file))
        rt = stack.enter_context(opened(runtime))
        session = stack.enter_context(rt.session(system))
        with reading_bar() as progress:
            # one question may have several parts itself
            focus = question[0] if question and len(question) == 1 else question or None
            session.read(files=files, focus=focus, progress=progress)
        session.save(path)
        print_footer(session.stats, rt.plan)
    console.print(f"saved as {save}, {format_size(path.stat().st_size)}", style="dim", markup=False, soft_wrap=True)
