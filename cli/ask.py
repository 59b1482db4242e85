"""`edgekv ask`: one question about texts of any length."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.engine.reply import INSTRUCTION
from edgekv.prompt.text import read_text
from edgekv.store.named import existing_path_of

from .files import text_files
from .options import AsJson, FocusOn, Raw, System, opened, with_common_options
from .render import print_footer, reading_bar, write
from .reply import reply_arguments, with_reply_options


@with_common_options
@with_reply_options(temp=0.0)
def ask(
    question: Annotated[str, typer.Argument(help="Question to answer.")],
    runtime: dict[str, Any],
    reply: dict[str, Any],
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="Text file to read first; repeatable; - for stdin.")
    ] = None,
    system: System = None,
    saved: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Go on from what `edgekv read --save NAME` has read.")
    ] = None,
    focus_on: FocusOn = None,
    passes: Annotated[
        int, typer.Option(help="2 = read the files again with the first answer in mind, and answer again.")
    ] = 1,
    raw: Raw = False,
    json_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The answer is JSON that fits this JSON schema.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The answer follows this grammar, in GBNF or Lark.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question about text files of any length, under the memory ceiling.

    Without -f, text that is piped in is read. In a loop over lines add </dev/null, or it takes the loop's lines.
    """
    held_to = {
        name: "".join(read_text(path))
        for name, path in (("json_schema", json_schema), ("grammar", grammar))
        if path is not None
    }
    arguments = reply_arguments(reply) | {"instruction": "" if raw or held_to else INSTRUCTION} | held_to
    arguments |= {"passes": passes, "focus": focus_on or None}
    runtime = runtime | {"grammars": bool(held_to)}
    begun = None if saved is None else existing_path_of(saved)
    if begun is not None and system is not None:
        raise edgekv.ConfigError(f"{saved!r} has a system message of its own; leave out --system, or --from")
    with ExitStack() as stack:
        files = stack.enter_context(text_files(file))
        rt = stack.enter_context(opened(runtime))
        session = stack.enter_context(rt.session(system) if begun is None else rt.load_session(begun))
        answer: list[str] = []
        exceeded: edgekv.CeilingExceededError | None = None
        with reading_bar() as progress:
            pieces = session.ask(question, files, **arguments, progress=progress)
            try:
                for piece in pieces:
                    answer.append(piece)
                    if not as_json:
                        write(piece)
            except edgekv.CeilingExceededError as error:
                exceeded = error  # what was said and measured until then is reported first
        if as_json:
            print(json.dumps(_report(rt, session, "".join(answer)), ensure_ascii=False))
        else:
            write("\n")
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
        "prompt_tokens": stats.prompt_tokens,
        "generated_tokens": stats.generated_tokens,
        "finish_reason": stats.finish_reason,
        "passes": stats.passes,
        "evictions": stats.evictions,
        "repositions": stats.repositions,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
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
            "first_pass_s": stats.first_pass_s,
            "prefill_s": stats.prefill_s,
            "ttft_s": stats.ttft_s,
            "prefill_tok_per_s": stats.prefill_tok_per_s,
            "decode_tok_per_s": stats.decode_tok_per_s,
            "probe_s": stats.probe_s,
            "score_s": stats.score_s,
            "compact_s": stats.compact_s,
        },
    }
