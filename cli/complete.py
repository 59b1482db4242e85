"""`edgekv complete`: a text goes on as it stands."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv

from .answer import answered
from .files import text_files
from .first_use import MeasureHeads, measure_at_first_use
from .reply import GrammarFile, SchemaFile, held_to, reply_arguments, with_reply_options
from .shared_options import AsJson, opened, with_common_options


@with_common_options
@with_reply_options(temp=0.0)
def complete(
    runtime: dict[str, Any],
    reply: dict[str, Any],
    text: Annotated[str, typer.Argument(help="Text to continue; it comes after the files.")] = "",
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Texts or documents to continue: names, patterns, folders; - for stdin."),
    ] = None,
    json_schema: SchemaFile = None,
    grammar: GrammarFile = None,
    measure_heads: MeasureHeads = True,
    as_json: AsJson = False,
) -> None:
    """Continue a text of any length, as it stands, under the memory ceiling. Base models can do nothing else.

    Files and the text follow each other without anything between them. Only what comes after them is printed.

    Without -f, text that is piped in is read. In a loop over lines add </dev/null, or it takes the loop's lines.
    """
    limits = held_to(json_schema, grammar)
    with ExitStack() as stack:
        files = stack.enter_context(text_files(file))
        if not text and not files:
            raise edgekv.InputError("there is nothing to continue; give a text, name files with -f, or pipe one in")
        if measure_heads:
            measure_at_first_use(runtime)
        rt = stack.enter_context(opened(runtime | {"grammars": bool(limits)}))
        session = stack.enter_context(rt.session())
        arguments = reply_arguments(reply) | limits | {"files": files}
        answered(rt, session, lambda bar: session.generate(text, **arguments, progress=bar), as_json=as_json)
