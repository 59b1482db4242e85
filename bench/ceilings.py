"""Ceilings that bind: planned against measured peaks of budgets chosen to fill them, and refusals just beyond.

Claim (docs/memory.md): a budget that fills its ceiling has a peak of 97 to 100 % of its plan; a cell more is refused.

For every ceiling and cache type a fresh process opens a runtime with the largest budget that fits, reads a text longer
than its cells, answers, and reports its peak (VmHWM on Linux). Another one asks for a cell more, and for a ceiling one
byte below the plan: both must be refused. The program fails where one is not, where a peak is above its plan, or more
than 3 % below it. A model without a chat template goes on with the text.

Ceilings are those that hold `--cells` of f16, in whole MiB, so that every model's budgets stay quick to fill. With
`--ceiling` they are named, and the cache type, the block and repacking are what the planner chooses, as for a user.
Figures are kept in the `--json` file case by case; a second run with the same file goes on where the first one stopped.

    python bench/ceilings.py --book novel.txt --model smollm2-135m-instruct --json ceilings.json
    python -m edgekv.testing.models.shapes llama-3.2-1b 1b.gguf
    python bench/ceilings.py --book novel.txt --model 1b.gguf
    python bench/ceilings.py --book novel.txt --model qwen.gguf --ceiling 1200MiB --ceiling 1280MiB
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import edgekv
from edgekv.evals import prose
from edgekv.memory.process import peak_resident_bytes
from edgekv.memory.sizes import parse_size
from edgekv.models.catalog import find_model
from edgekv.options import KV_TYPES
from edgekv.planning.choice import Request
from edgekv.planning.estimate import Estimator
from edgekv.runtime import Runtime  # imported in every process, so that all plan with the same Python
from edgekv.testing import programs
from edgekv.testing.programs import MIB

MAX_ERROR = 0.03
N_BEYOND = 300  # tokens that are read beyond the cells


def measure(case: dict) -> dict[str, object]:
    """Fill the largest budget and one block more, in this process; its plan and its peak."""
    book, options = case["book"], case["options"]
    with Runtime(**options) as runtime, runtime.session() as session:
        plan = runtime.plan
        tokens = prose.first_tokens(runtime.model, Path(book).read_text("utf-8"), plan.n_cells + N_BEYOND)
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder, "text.txt")
            text.write_text(prose.text_of(runtime.model, tokens), encoding="utf-8")
            del tokens
            if runtime.reply_opening():
                reply = session.ask("Who is the hero of this story?", files=[text], max_tokens=16)
            else:
                reply = session.generate(text.read_text("utf-8"), max_tokens=16)
            for _ in reply:
                pass
        return {
            "budget": plan.budget_cells,
            "block": plan.block,
            "chosen_kv_type": plan.kv_type,
            "evictions": session.stats.evictions,
            "planned": plan.peak_bytes,
            "measured": peak_resident_bytes(),
            "parts": plan.as_dict()["parts"],
        }


def refusals(case: dict) -> dict[str, object]:
    """Return whether two requests are refused: a cell above the largest budget, and a byte below its plan."""
    request = Request.of(**{name: value for name, value in case["options"].items() if name != "model"})
    with Estimator(find_model(case["options"]["model"]), request) as estimates:
        plan = estimates.best(request)
        named = plan.resolve(request.options)

        def is_refused(options: edgekv.Options) -> bool:
            return estimates.best(Request(options, frozenset())) is None

        return {
            "fits": not is_refused(replace(named, memory=plan.peak_bytes)),
            "refused": is_refused(replace(named, budget=plan.budget_cells + 1))
            and is_refused(replace(named, memory=plan.peak_bytes - 1)),
        }


def ceiling_for(case: dict) -> dict[str, object]:
    """Whole MiB that hold a budget, as a fresh process would plan it."""
    return {"ceiling": -(-edgekv.plan(**case["options"]).peak_bytes // MIB) * MIB}


JOBS = {job.__name__: job for job in (measure, refusals, ceiling_for)}


def in_fresh_process(job: str, **case: object) -> dict[str, object]:
    """Return the figures of a job of JOBS, in a process that does nothing else."""
    return programs.in_fresh_process(__file__, case | {"job": job})


def run(options: argparse.Namespace, book: Path) -> list[dict]:
    """All cases; those that the figures hold already are not run again."""
    done = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for ceiling in options.ceiling or ():
        case = {"model": options.model, "ceiling": parse_size(ceiling), "kv_type": "chosen"}
        if any(case.items() <= old.items() for old in done):
            continue
        settings = {"model": options.model, "threads": options.threads, "memory": ceiling}
        case |= in_fresh_process("refusals", options=settings)
        add(case | in_fresh_process("measure", options=settings, book=str(book)), done, options.json)
    if options.ceiling:
        return done
    common_options = {"model": options.model, "threads": options.threads, "block": options.block, "repack": False}
    for cells, kv_type in itertools.product(options.cells, KV_TYPES):
        key = {"model": options.model, "block": options.block, "cells": cells}
        same = [case for case in done if key.items() <= case.items()]
        if kv_type in (case["kv_type"] for case in same):
            continue
        if same:
            ceiling = same[0]["ceiling"]
        else:
            named = common_options | {"memory": "100%", "budget": cells, "kv_type": "f16"}
            ceiling = in_fresh_process("ceiling_for", options=named)["ceiling"]
        settings = common_options | {"memory": ceiling, "kv_type": kv_type}
        case = key | {"kv_type": kv_type, "ceiling": ceiling} | in_fresh_process("refusals", options=settings)
        add(case | in_fresh_process("measure", options=settings, book=str(book)), done, options.json)
    return done


def add(case: dict, done: list[dict], path: Path | None) -> None:
    """Keep the figures of a case, and print them."""
    done.append(case)
    programs.write_json(path, done)
    kv_type, block = case["chosen_kv_type"], case["block"]
    print(f"{case['ceiling'] // MIB} MiB, {kv_type}, block {block}: {case['budget']} cells, {error_of(case):+.2%}")


def error_of(case: dict) -> float:
    """Return how far the plan is above the measured bytes, as a share of them."""
    return case["planned"] / case["measured"] - 1


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--cells", type=int, action="append", help="f16 cells to hold; repeatable (192, 320, 448)")
    parser.add_argument("--ceiling", action="append", help="in place of --cells: a ceiling as a size; repeatable")
    parser.add_argument("--block", type=int, default=128)
    options = parser.parse_args()
    options.cells = options.cells or [192, 320, 448]
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder, "book.txt")
        book.write_text(prose.read_book(options.book)[: 1 << 18], encoding="utf-8")
        cases = run(options, book)
    programs.print_table(
        ["model", "ceiling MiB", "cells of", "budget", "planned MiB", "measured MiB", "error", "refusals"],
        [
            [Path(c["model"] or "default").stem, c["ceiling"] // MIB, c["chosen_kv_type"], c["budget"]]
            + [f"{c[name] / MIB:.2f}" for name in ("planned", "measured")]
            + [f"{error_of(c):+.2%}", "right" if c["fits"] and c["refused"] else "WRONG"]
            for c in cases
        ],
    )
    wrong = [
        c
        for c in cases
        if not (0 <= error_of(c) <= MAX_ERROR and c["measured"] <= c["planned"] <= c["ceiling"])
        or not (c["fits"] and c["refused"] and c["evictions"])
    ]
    print(f"wrong: {len(wrong)} of {len(cases)} cases")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    programs.run(main, lambda case: JOBS[case["job"]](case))
