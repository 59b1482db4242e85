"""Planned against measured peak memory: the plan is a ceiling, and the length of the text does not count.

Claim (docs/memory.md): no peak is above its plan, and the length of a text adds nothing to it.

Every case runs in a fresh process, which answers a question about a text and reports its own peak (VmHWM on Linux).
Two things must hold: no case is measured above its plan, and for each budget and cell type the peaks for the
shortest and the longest text are within 1 %. The program fails where one of them does not.

    python bench/memory.py --book novel.txt
    python bench/memory.py --book novel.txt --tokens 600 --tokens 1200 --budget 512 --kv-type f16 --parts
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import edgekv
from edgekv.evals import prose
from edgekv.testing import programs


def run_case(case: dict[str, object]) -> dict[str, object]:
    """Read a text and answer, in this process."""
    text = case.pop("text")
    with edgekv.Runtime(memory="100%", repack=False, **case) as runtime, runtime.session() as session:
        for _ in session.ask("Who is the hero of this story?", files=[text], max_tokens=16):
            pass
        return {
            "tokens": session.stats.prompt_tokens,
            "planned": runtime.plan.peak_bytes,
            "measured": session.stats.peak_rss_bytes,
            "parts": runtime.plan.as_dict()["parts"],
        }


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--tokens", type=int, action="append", help="length of the text; repeatable (2000, 6000)")
    parser.add_argument("--budget", type=int, action="append", help="cells; repeatable (256, 512, 2048)")
    parser.add_argument("--kv-type", action="append", help="type of the cells; repeatable (f16, q8_0, q4_0)")
    parser.add_argument("--policy", action="append", help="policy; repeatable (keydiff)")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--parts", action="store_true", help="print what each plan is made of, in MiB")
    options = parser.parse_args()
    lengths = sorted(options.tokens or [2000, 6000])
    kv_types, budgets = options.kv_type or ["f16", "q8_0", "q4_0"], options.budget or [256, 512, 2048]
    settings = itertools.product(options.policy or ["keydiff"], kv_types, budgets)

    results, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        with prose.vocabulary(options.model) as model:
            tokens = prose.first_tokens(model, prose.read_book(options.book), lengths[-1])
            for n in lengths:
                Path(folder, f"{n}.txt").write_text(prose.text_of(model, tokens[:n]), encoding="utf-8")
        for policy, kv_type, budget in settings:
            setting = {"policy": policy, "kv_type": kv_type, "budget": budget, "block": options.block}
            setting |= {"model": options.model, "threads": options.threads}
            done = [programs.in_fresh_process(__file__, setting | {"text": f"{folder}/{n}.txt"}) for n in lengths]
            results += [setting | result for result in done]
            ratios.append(done[-1]["measured"] / done[0]["measured"])
            print(
                f"{policy} {kv_type} {budget}: peak for {lengths[-1]} / {lengths[0]} tokens = {ratios[-1]:.4f}",
                flush=True,
            )
            if options.parts:
                print(*(f"  {part} {n / programs.MIB:.2f}" for part, n in done[-1]["parts"].items()), sep="\n")

    errors = [result["planned"] / result["measured"] - 1 for result in results]
    programs.print_table(
        ["policy", "cells of", "budget", "tokens read", "planned MiB", "measured MiB", "error"],
        [
            [r["policy"], r["kv_type"], r["budget"], r["tokens"]]
            + [f"{r[key] / programs.MIB:.2f}" for key in ("planned", "measured")]
            + [f"{error:+.2%}"]
            for r, error in zip(results, errors, strict=True)
        ],
    )
    programs.write_json(options.json, {"cases": results, "length_ratios": ratios})
    length_counts = max(abs(ratio - 1) for ratio in ratios) > 0.01
    print(f"measured above its plan: {sum(error < 0 for error in errors)} of {len(errors)} cases")
    print(f"peak grows with the text: {'yes' if length_counts else 'no'} (at most 1 % is meant)")
    sys.exit(length_counts or min(errors) < 0)


if __name__ == "__main__":
    programs.run(main, run_case)
