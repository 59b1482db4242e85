"""Reads and generates with edgekv at its defaults, in a process that holds nothing else.

as_installed.py runs it. It takes a case of stock_llama.py's as JSON on standard input, with "memory" in bytes and
"budget" in cells, or null. It prints what that program prints, "setting", and "plain": the tokens and the times of
reading without a question. If the ceiling holds no plan, it prints {"required"} instead, the bytes of the smallest one.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import edgekv
from edgekv.generation.sampler import GREEDY, Sampler
from edgekv.memory.process import peak_resident_bytes

QUESTION = "What does the text say about the people in it and their plans?"


def clocks() -> tuple[float, float]:
    """Wall time and processor time of all threads, in seconds."""
    return time.perf_counter(), time.process_time()


def read(runtime: edgekv.Runtime, session: edgekv.Session, path: Path, asks: bool) -> None:
    """Read a file up to the first token of a reply, with a question about it or without."""
    if asks:
        list(session.ask(QUESTION, files=[path], max_tokens=1))
    else:
        list(session.generate(files=[path], max_tokens=1))


def main() -> None:
    """Read a text, and generate."""
    case = json.load(sys.stdin)
    options = {name: case[name] for name in ("memory", "threads", "budget", "resident")}
    with edgekv.Runtime(case["model"], **options) as runtime, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text.txt")
        asks = bool(runtime.reply_opening())  # a model without a template cannot chat
        path.write_text(case["text"][:256], encoding="utf-8")
        with runtime.session() as session:
            read(runtime, session, path, asks)  # warms up
        path.write_text(case["text"], encoding="utf-8")
        with runtime.session() as session, closing(Sampler(GREEDY)) as sampler:
            times = [clocks()]
            read(runtime, session, path, asks)
            times.append(clocks())
            for _ in range(case["generate"]):
                runtime.block_loop.step(sampler.sample(runtime.context))
            times.append(clocks())
            n_tokens = session.stats.prompt_tokens
        with runtime.session() as session:
            plain = [clocks()]
            read(runtime, session, path, asks=False)
            plain.append(clocks())
            n_plain = session.stats.prompt_tokens
        plan = runtime.plan
        setting = f"{plan.budget_cells:,} cells, {plan.kv_type}, block {plan.block}{', repacked' * plan.repack}"
        setting += f", {plan.n_streamed} layers from the file" * (plan.n_streamed > 0)
        figures = {"tokens": n_tokens, "times": times, "peak": peak_resident_bytes(), "setting": setting}
        print(json.dumps(figures | {"plain": {"tokens": n_plain, "times": plain}}))


if __name__ == "__main__":
    try:
        main()
    except edgekv.CeilingError as error:
        print(json.dumps({"required": error.required_bytes}))
