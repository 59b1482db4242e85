"""One portable library on every set of instructions of this processor: what ggml then uses, and how fast it reads.

Claim (native/README.md): a library built with EDGEKV_PORTABLE=ON reads as fast as one built for the set alone. With
`--against FOLDER` a library that was built for this processor takes turns with the sets; at least 0.97 of its speed is
meant.

Every run is a fresh process with EDGEKV_INSTRUCTIONS naming the set; the sets take turns. Times are of the processor,
so that with `--threads 1` other programs matter less. A set whose name ggml does not confirm is an error: then the
library is not a portable one. What was predicted before anything was measured stands beside each figure.

    EDGEKV_LIB_PATH=build/one python bench/instructions.py --book novel.txt --threads 1 --against NATIVE_BUILD
"""

from __future__ import annotations

import os
import time

import edgekv
from edgekv.binding.library import bindings
from edgekv.evals import prose
from edgekv.testing import programs

# set -> which of these three ggml was compiled for
SETS = {"baseline": ["SSE3"], "avx2": ["SSE3", "AVX2"], "avx512": ["SSE3", "AVX2", "AVX512"]}
PREDICTED = {"baseline": "40", "avx2": "130", "avx512": "150", "native": "150"}
NATIVE = "native"


def run_case(case: dict[str, object]) -> dict[str, object]:
    """Read tokens in this process; tokens a second of processor time, and what ggml was compiled for."""
    tokens = case["tokens"]
    with edgekv.Runtime(case["model"], memory="100%", threads=case["threads"], budget=1024, focus=False) as runtime:
        block = runtime.options.block
        runtime.block_loop.read(tokens[:block], lambda _: True)  # warms up
        started = time.process_time()
        runtime.block_loop.read(tokens[block:], lambda _: True)
        speed = (len(tokens) - block) / (time.process_time() - started)
    features = bindings().llama_print_system_info().decode()
    return {"speed": speed, "features": [name for name in SETS["avx512"] if f" {name} = 1" in features]}


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--read", type=int, default=512, help="tokens read")
    parser.add_argument("--runs", type=int, default=3, help="runs of each set")
    parser.add_argument("--set", choices=SETS, action="append", help="repeatable (all)")
    parser.add_argument("--against", metavar="FOLDER", help="of a library that was built for this processor")
    options = parser.parse_args()

    with edgekv.Runtime(options.model, memory="100%", budget=64) as runtime:
        tokens = prose.first_tokens(runtime.model, prose.read_book(options.book), options.read)
    case = {"model": options.model, "threads": options.threads, "tokens": tokens}
    sets = list(options.set or SETS)
    speeds: dict[str, list[float]] = {name: [] for name in [*sets, *([NATIVE] if options.against else [])]}
    portable = dict(os.environ)
    for _ in range(options.runs):
        for name, of_set in speeds.items():
            named = {"EDGEKV_LIB_PATH": options.against} if name == NATIVE else {"EDGEKV_INSTRUCTIONS": name}
            os.environ.clear()
            os.environ.update(portable | named)
            result = programs.in_fresh_process(__file__, case)
            if result["features"] != SETS.get(name, result["features"]):
                raise SystemExit(f"EDGEKV_INSTRUCTIONS={name} runs with {', '.join(result['features'])}")
            of_set.append(result["speed"])
    rows = [(name, PREDICTED[name], f"{programs.median(of_set):.0f}", len(of_set)) for name, of_set in speeds.items()]
    programs.print_table(["tokens a second of processor time", "predicted", "measured", "runs"], rows)
    if options.against:
        pairs = zip(speeds[sets[-1]], speeds[NATIVE], strict=True)
        print(f"{sets[-1]} over {NATIVE}: {programs.median([one / other for one, other in pairs]):.3f}")
    programs.write_json(options.json, speeds)


if __name__ == "__main__":
    programs.run(main, run_case)
