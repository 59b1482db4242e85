"""`edgekv ask`: one question about texts of any length."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.generation.request import INSTRUCTION
from edgekv.store.session_names import existing_path_of, saved_names

from .answer import answered
from .files import text_files
from .first_use import MeasureHeads, measure_at_first_use
from .reply import GrammarFile, SchemaFile, held_to, reply_arguments, with_reply_options
from .shared_options import AsJson, FocusOn, Raw, System, opened, with_common_options


@with_common_options
@with_reply_options(temp=0.0)
def ask(
    question: Annotated[str, typer.Argument(help="Question to answer.")],
    runtime: dict[str, Any],
    reply: dict[str, Any],
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Texts or documents to read first: names, patterns, folders; - for stdin."),
    ] = None,
    system: System = None,
    saved: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="NAME",
            help="Go on from what `edgekv read --save NAME` has read.",
            autocompletion=saved_names,
        ),
    ] = None,
    focus_on: FocusOn = None,
    passes: Annotated[
        int, typer.Option(help="2 = read the files again with the first answer in mind, and answer again.")
    ] = 1,
    raw: Raw = False,
    json_schema: SchemaFile = None,
    grammar: GrammarFile = None,
    measure_heads: MeasureHeads = True,
    as_json: AsJson = False,
) -> None:
    """Answer a question about text files of any length, under the memory ceiling.

    Without -f, text that is piped in is read. In a loop over lines add </dev/null, or it takes the loop's lines.
    """
    limits = held_to(json_schema, grammar)
    arguments = reply_arguments(reply) | {"instruction": "" if raw or limits else INSTRUCTION} | limits
    arguments |= {"passes": passes, "focus": focus_on or None}
    runtime = runtime | {"grammars": bool(limits)}
    begun = None if saved is None else existing_path_of(saved)
    if begun is not None and system is not None:
        raise edgekv.ConfigError(f"{saved!r} has a system message of its own; leave out --system, or --from")
    with ExitStack() as stack:
        files = stack.enter_context(text_files(file))
        if measure_heads:
            measure_at_first_use(runtime, known=runtime["focus"])
        rt = stack.enter_context(opened(runtime))
        session = stack.enter_context(rt.session(system) if begun is None else rt.load_session(begun, log=False))
        answered(rt, session, lambda bar: session.ask(question, files, **arguments, progress=bar), as_json=as_json)
