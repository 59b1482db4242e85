"""edgekv on a GPU against llama.cpp's own cache there: the same library, the same weights on the device, two caches.

Claim (docs/results/devices.md): with a fixed number of cells edgekv reads and generates at least as fast as
llama.cpp with all cells, and an eviction copies a small part of its rows to the host.

Every run is a fresh process that warms up; the two take turns. llama.cpp has batches of 512 and a cache that holds the
text. edgekv has `--budget` cells and blocks of 512. "crossed" is what one eviction copied between host and device, in
MiB, and "staged" the layers whose rows had to come to the host for it. "host" is the peak of the process, and "device"
what the plan names for the device.

Predicted before the first run on a GPU, default model: reading 1.0 of llama.cpp at 1,000 tokens and 1.2 at 8,000,
generating 1.0 and 1.3, since attention then reads 1,024 cells in place of 8,000; crossed at most 0.2 MiB; nothing
staged.

    python bench/gpu.py --book BOOK
    python bench/gpu.py --book BOOK --layers 0    # the same on the processor, to try the program
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import edgekv
from edgekv.binding.model import Model
from edgekv.evals import prose
from edgekv.evals.stock import Peer
from edgekv.memory import process
from edgekv.models.catalog import find_model
from edgekv.options import Options
from edgekv.testing import programs

BLOCK = 512
WARM_UP = 256  # characters
PREDICTED = {"reading": "1.0, 1.2", "generating": "1.0, 1.3", "host": ""}


def edgekv_case(case: dict) -> dict[str, float]:
    """Read a text and generate after it with edgekv, in this process."""
    options = {"budget": case["budget"], "block": BLOCK, "kv_type": "f16", "threads": case["threads"]}
    with edgekv.Runtime(case["model"], memory="100%", gpu_layers=case["layers"], **options) as runtime:
        for text in (case["text"][:WARM_UP], case["text"]):
            with runtime.session() as session:
                said = session.generate(text, max_tokens=case["generate"], ignore_eos=True, allow_loops=True)
                n_said = sum(1 for _ in said)
                stats = session.stats
        assert n_said
        return {
            "reading": stats.read_tokens / stats.prefill_s,
            "generating": stats.generated_tokens / stats.decode_s,
            "host": stats.peak_rss_bytes,
            "device": runtime.plan.device_bytes,
            "evictions": stats.evictions,
            "crossed": stats.crossed_bytes / max(1, stats.evictions),
            "staged": stats.staged_layers,
        }


def llama_case(case: dict) -> dict[str, float]:
    """Read a text and generate after it with llama.cpp's own cache, in this process."""
    peer = Peer.alike(Options(block=BLOCK, ubatch=BLOCK, threads=case["threads"], gpu_layers=case["layers"]))
    with Model(Path(case["model"]), peer.options) as model:
        tokens = model.tokenize(case["text"], begin=True)
        with closing(peer.loop(model, len(tokens) + case["generate"])) as loop:
            loop.read(model.tokenize(case["text"][:WARM_UP], begin=True))
            loop.step(loop.sample())
            started = time.perf_counter()
            loop.read(tokens)
            loop.sample()
            read = time.perf_counter()
            for _ in range(case["generate"]):
                loop.step(loop.sample())
            ended = time.perf_counter()
    return {
        "reading": len(tokens) / (read - started),
        "generating": case["generate"] / (ended - read),
        "host": process.peak_resident_bytes(),
    }


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--tokens", type=int, action="append", help="length of the text; repeatable (1000, 8000)")
    parser.add_argument("--budget", type=int, default=1024, help="cells (default: 1024)")
    parser.add_argument("--layers", type=int, default=1 << 10, help="layers on the GPU (default: all)")
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()

    shared = {"model": str(find_model(options.model)), "layers": options.layers, "threads": options.threads}
    shared |= {"generate": options.generate, "budget": options.budget}
    figures = {}
    for n_tokens in options.tokens or [1000, 8000]:
        with prose.vocabulary(options.model) as model:
            text = prose.text_of(model, prose.first_tokens(model, prose.read_book(options.book), n_tokens))
        pairs = []
        for i in range(options.pairs):
            found = {}
            for ours in (i % 2 == 0, i % 2 == 1):
                case = shared | {"text": text, "edgekv": ours}
                found[ours] = programs.in_fresh_process(__file__, case)
            pairs.append((found[False], found[True]))
        print(f"\n{n_tokens:,} tokens, tokens a second and MiB:")
        programs.print_pairs(("llama.cpp", "edgekv"), pairs, PREDICTED, {"host": programs.MIB})
        last = pairs[-1][1]
        device, crossed = (last[name] / programs.MIB for name in ("device", "crossed"))
        print(
            f"edgekv: device {device:.0f} MiB, {last['evictions']} evictions, {crossed:.2f} MiB crossed by each, "
            f"{last['staged']} layers staged"
        )
        figures[n_tokens] = [{"llama.cpp": theirs, "edgekv": mine} for theirs, mine in pairs]
    programs.write_json(options.json, figures)


if __name__ == "__main__":
    programs.run(main, lambda case: edgekv_case(case) if case["edgekv"] else llama_case(case))
