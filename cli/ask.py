"""`edgekv ask`: one question about texts of any length."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv

from .files import on_disk, piped
from .options import with_common_options
from .render import print_footer, reading_bar, write


@with_common_options
def ask(
    question: Annotated[str, typer.Argument(help="Question to answer.")],
    runtime: dict[str, Any],
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="Text file to read first; repeatable; - for stdin.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message; never evicted.")] = None,
    temp: Annotated[float, typer.Option(help="Temperature; 0 = always the most likely token.")] = 0.0,
    repeat_penalty: Annotated[
        float, typer.Option(help="Make tokens of the last 64 less likely to come again; 1 = off, 1.1 = a little.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampler. Default: a new one each time.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Answer a question about text files of any length, under the memory ceiling."""
    sampling = edgekv.Sampling(temperature=temp, repeat_penalty=repeat_penalty, seed=seed)
    with ExitStack() as stack:
        files = [stack.enter_context(on_disk(path)) for path in file or piped()]
        rt = stack.enter_context(edgekv.Runtime(**runtime))
        session = stack.enter_context(rt.session(system))
        answer: list[str] = []
        exceeded: edgekv.CeilingExceededError | None = None
        with reading_bar() as progress:
            pieces = session.ask(question, files, max_tokens=max_tokens, sampling=sampling, progress=progress)
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
        "evictions": stats.evictions,
        "repositions": stats.repositions,
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
            "prefill_s": stats.prefill_s,
            "ttft_s": stats.ttft_s,
            "prefill_tok_per_s": stats.prefill_tok_per_s,
            "decode_tok_per_s": stats.decode_tok_per_s,
            "probe_s": stats.probe_s,
            "score_s": stats.score_s,
            "compact_s": stats.compact_s,
        },
    }
