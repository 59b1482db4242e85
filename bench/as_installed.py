"""edgekv at its defaults against llama-cpp-python as another Python has it installed, at that one's defaults.

Claim (bench/RESULTS.md): with focus, and under a ceiling of three quarters of what llama.cpp takes, it reads as fast.

Both get the same text; threads are each one's default, or `--threads`. llama.cpp gets a context that holds the text.
edgekv gets a ceiling, `--share` of the peak that llama.cpp had in the same pair. It chooses everything else itself, but
for the cells, if `--budget` names them. It reads the text as a file with a question about it. Every run is a fresh
process that warms up, the two run in turn, and the table shows medians of their ratios. `edgekv bench` measures the
same without an installation, on edgekv's library. With `--other` a second llama-cpp-python takes edgekv's place, which
was built otherwise: say, with CMAKE_ARGS=-DGGML_OPENMP=OFF.

    uv venv peer && uv pip install --python peer/bin/python --no-cache llama-cpp-python==0.3.36
    python bench/as_installed.py --book novel.txt --peer peer/bin/python --model 0.5b-q4_0.gguf --threads 1
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import edgekv
from edgekv.evals import prose
from edgekv.generation.sampler import GREEDY, Sampler
from edgekv.memory.process import peak_resident_bytes
from edgekv.models.registry import find_model
from edgekv.testing import programs
from edgekv.testing.programs import MIB

QUESTION = "What does the text say about the prince and his plans for the war?"
PREDICTED = {"reading": "1.1 at 1,000 tokens, 2 at 8,000", "generating": "1.1", "peak": "0.74"}


def run_stock(python: str, case: dict) -> dict[str, float]:
    """Measure a case with the llama-cpp-python of another Python."""
    command = [python, str(Path(__file__).with_name("stock_llama.py"))]
    child = subprocess.run(command, input=json.dumps(case), stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(child.stdout)
    return figures


def run_case(case: dict) -> dict[str, object]:
    """Read with a question and generate, in this process."""
    options = {name: case[name] for name in ("memory", "threads", "budget")}
    with edgekv.Runtime(case["model"], **options) as runtime, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text.txt")
        path.write_text(case["text"][:256], encoding="utf-8")
        with runtime.session() as session:
            list(session.ask(QUESTION, files=[path], max_tokens=1))  # warms up
        path.write_text(case["text"], encoding="utf-8")
        with runtime.session() as session:
            list(session.ask(QUESTION, files=[path], max_tokens=1))
            stats = session.stats
            with closing(Sampler(GREEDY)) as sampler:
                started = time.perf_counter()
                for _ in range(case["generate"]):
                    runtime.block_loop.step(sampler.sample(runtime.context))
                said = time.perf_counter()
        plan = runtime.plan
        return {
            "reading": stats.prompt_tokens / stats.prefill_s,
            "generating": case["generate"] / (said - started),
            "peak": peak_resident_bytes(),
            "setting": f"{plan.budget_cells:,} cells, {plan.kv_type}, block {plan.block}",
            "probes": stats.probes,
        }


def main() -> None:
    """Measure pairs, and print medians and ratios."""
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--peer", required=True, help="the Python that has llama-cpp-python")
    parser.add_argument("--other", help="a Python with another llama-cpp-python, in place of edgekv")
    parser.add_argument("--length", type=int, default=1000, help="tokens of the text")
    parser.add_argument("--generate", type=int, default=48)
    parser.add_argument("--share", type=float, default=0.75, help="edgekv's ceiling, of llama.cpp's peak")
    parser.add_argument("--budget", type=int, help="cells of edgekv (default: what the ceiling leaves)")
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()

    with prose.vocabulary(args.model) as model:
        text = prose.text_of(model, prose.first_tokens(model, prose.read_book(args.book), args.length))
    case = {"model": str(find_model(args.model)), "text": text, "generate": args.generate}
    case |= {"threads": args.threads, "budget": args.budget}

    pairs: list[tuple[dict, dict]] = []
    for _ in range(args.pairs):
        peer = run_stock(args.peer, case)
        if args.other:
            pairs.append((peer, run_stock(args.other, case)))
            continue
        ours = programs.in_fresh_process(__file__, case | {"memory": int(args.share * peer["peak"])})
        if "refused" in ours:
            sys.exit(f"{args.share:g} of llama.cpp's peak is too little: {ours['refused']}; name a larger --share")
        pairs.append((peer, ours))
    other = "the other" if args.other else "edgekv"
    threads = case["threads"] or "each its own default of"
    print(f"{pairs[0][0]['tokens']:,} tokens, {threads} threads; {other}: {pairs[-1][1].get('setting', args.other)}")
    names = ("llama-cpp-python", other)
    programs.print_pairs(names, pairs, dict.fromkeys(PREDICTED, "") if args.other else PREDICTED, {"peak": MIB})
    programs.write_json(args.json, pairs)


if __name__ == "__main__":
    if sys.argv[1:] == ["--case"]:
        try:
            print(json.dumps(run_case(json.load(sys.stdin))))
        except edgekv.CeilingError as error:
            print(json.dumps({"refused": str(error)}))
    else:
        main()
