"""`edgekv ask`, one question about texts of any length, and `edgekv complete`, a text that goes on as it stands.

Both print one reply as it comes, with its figures after it, or one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.generation.request import INSTRUCTION, ProgressCallback
from edgekv.store.session_names import existing_path_of, saved_names

from .files import text_files
from .render import print_footer, reading_bar
from .shared_options import (
    AsJson,
    FocusOn,
    Grammar,
    JsonSchema,
    Raw,
    System,
    held_to,
    opened,
    reply_arguments,
    with_common_options,
    with_reply_options,
)

# what --json tells of `Stats`, in this order
FIGURES = (
    *("prompt_tokens", "generated_tokens", "tokens_seen", "kept_tokens", "forgotten_tokens", "finish_reason"),
    *("evictions", "repositions", "drafted_tokens", "accepted_tokens", "recalls", "recalled_cells", "scanned_tokens"),
    *("archived_tokens", "recallable_tokens", "archived_bytes", "archive_failure"),
)
TIMES = (
    *("prefill_s", "ttft_s", "prefill_tok_per_s", "decode_tok_per_s"),
    *("probe_s", "score_s", "compact_s", "recall_s", "archive_s"),
)


@with_common_options
@with_reply_options(edgekv.Sampling())
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
    raw: Raw = False,
    json_schema: JsonSchema = None,
    grammar: Grammar = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question about text files of any length, under the memory ceiling.

    Without -f, text that is piped in is read. In a loop over lines add </dev/null, or it takes the loop's lines.
    """
    limits = held_to(json_schema, grammar)
    arguments = reply_arguments(reply) | {"instruction": "" if raw or limits else INSTRUCTION} | limits
    arguments |= {"focus": focus_on or None}
    runtime = runtime | {"grammars": bool(limits)}
    begun = None if saved is None else existing_path_of(saved)
    if begun is not None and system is not None:
        raise edgekv.ConfigError(f"{saved!r} has a system message of its own; leave out --system, or --from")
    with ExitStack() as stack:
        files = stack.enter_context(text_files(file))
        rt = stack.enter_context(opened(runtime))
        session = stack.enter_context(rt.session(system) if begun is None else rt.load_session(begun, history=False))
        _answer(rt, session, lambda bar: session.ask(question, files, **arguments, progress=bar), as_json=as_json)


@with_common_options
@with_reply_options(edgekv.Sampling())
def complete(
    runtime: dict[str, Any],
    reply: dict[str, Any],
    text: Annotated[str, typer.Argument(help="Text to continue; it comes after the files.")] = "",
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Texts or documents to continue: names, patterns, folders; - for stdin."),
    ] = None,
    json_schema: JsonSchema = None,
    grammar: Grammar = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text of any length, as it stands, under the memory ceiling. Base models can do nothing else.

    Files and the text follow each other without anything between them. A name of a control token in the
    text becomes this token. Only the continuation is printed.

    Without -f, text that is piped in is read. In a loop over lines add </dev/null, or it takes the loop's lines.
    """
    limits = held_to(json_schema, grammar)
    with ExitStack() as stack:
        files = stack.enter_context(text_files(file))
        if not text and not files:
            raise edgekv.InputError("there is nothing to continue; give a text, name files with -f, or pipe one in")
        rt = stack.enter_context(opened(runtime | {"grammars": bool(limits)}))
        session = stack.enter_context(rt.session())
        arguments = reply_arguments(reply) | limits | {"files": files}
        _answer(rt, session, lambda bar: session.generate(text, **arguments, progress=bar), as_json=as_json)


def _answer(
    rt: edgekv.Runtime,
    session: edgekv.Session,
    reply: Callable[[ProgressCallback], Iterator[str]],
    *,
    as_json: bool,
) -> None:
    """Print a reply and its figures.

    reply: begins the reply; takes the progress callback

    Raises CeilingExceededError if the reply ended so, after its text and figures are printed.
    """
    answer: list[str] = []
    exceeded: edgekv.CeilingExceededError | None = None
    with reading_bar() as progress:
        try:
            for piece in reply(progress):
                answer.append(piece)
                if not as_json:
                    print(piece, end="", flush=True)
        except edgekv.CeilingExceededError as error:
            exceeded = error
    if as_json:
        print(json.dumps(_report(rt, session, "".join(answer)), ensure_ascii=False))
    else:
        print(flush=True)
        print_footer(session.stats, rt.plan)
    if exceeded is not None:
        raise exceeded


def _report(rt: edgekv.Runtime, session: edgekv.Session, answer: str) -> dict[str, Any]:
    plan, stats = rt.plan.as_dict(), session.stats
    return {
        "answer": answer,
        "model": str(rt.plan.model),
        "policy": rt.options.parsed_policy.spec,
        "budget_cells": rt.plan.budget_cells,
        "block": rt.plan.block,
        "kv_type": rt.plan.kv_type,
        **{name: getattr(stats, name) for name in FIGURES},
        "budgets": session.budgets(),
        "kv_bytes": rt.plan.kv_bytes,
        "focus": rt.options.parsed_focus.spec if stats.probes else None,
        "memory": {
            "ceiling_bytes": rt.plan.ceiling_bytes,
            "planned_peak_bytes": rt.plan.peak_bytes,
            "peak_rss_bytes": stats.peak_rss_bytes,
            "times_over_ceiling": session.n_exceeded,
            "parts": plan["parts"],
        },
        "timing": {
            "load_s": rt.load_s,
            **{name: getattr(stats, name) for name in TIMES},
        },
    }
