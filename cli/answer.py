"""The one reply of a command: printed as it comes, with its figures after it, or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import edgekv
from edgekv.generation.request import ProgressCallback

from .render import print_footer, reading_bar, write


def answered(
    rt: edgekv.Runtime,
    session: edgekv.Session,
    reply: Callable[[ProgressCallback], Iterator[str]],
    *,
    as_json: bool,
) -> None:
    """Print a reply and its figures.

    reply: begins it, with what shows how far the prompt is read

    Raises CeilingExceededError after that, if the reply ended so: what was said and measured is reported first.
    """
    answer: list[str] = []
    exceeded: edgekv.CeilingExceededError | None = None
    with reading_bar() as progress:
        try:
            for piece in reply(progress):
                answer.append(piece)
                if not as_json:
                    write(piece)
        except edgekv.CeilingExceededError as error:
            exceeded = error
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
