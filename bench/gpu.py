"""edgekv on a GPU against llama.cpp's own cache there: the same library, the same weights on the device, two caches.

Claim (docs/results/devices.md): with a fixed number of cells edgekv reads and generates at least as fast as
llama.cpp with all cells, and an eviction copies a small part of its rows to the host.

Every run is a fresh process that warms up; the two take turns. llama.cpp has batches of 512 and a cache that holds the
text. edgekv has `--budget` cells and the block that its plan chooses. "crossed" is what one eviction copied between
host and device, in MiB, and "staged" the layers whose rows had to come to the host for it. "host" is the peak of the
process, and "device" what the plan names for the device.

Speeds are those without an archive, unless `--archive auto` or a size names one: then rows of every block come to the
host.

With --memory it reads at the ceiling that edgekv chooses itself, and compares what the process and the GPU held with
the plan. A plan that is too small ends it, as it ends `edgekv ask`.

    python bench/gpu.py --book BOOK
    python bench/gpu.py --book BOOK --memory
    python bench/gpu.py --book BOOK --layers 0    # the same on the processor, to try the program
"""

from __future__ import annotations

import subprocess
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

BATCH = 512
WARM_UP = 256  # characters
HELD = {"process": ("planned", "host"), "GPU": ("device", "held")}


def edgekv_case(case: dict) -> dict[str, float]:
    """Read a text and generate after it with edgekv, in this process; without a budget, at the ceiling it chooses."""
    before = used_on_gpus()
    fixed = {"memory": "100%", "budget": case["budget"], "kv_type": "f16"} if case["budget"] else {}
    options = {"gpu_layers": case["layers"], "threads": case["threads"], "archive": case["archive"]}
    with edgekv.Runtime(case["model"], **options, **fixed) as runtime:
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
            "planned": runtime.plan.peak_bytes,
            "device": runtime.plan.device_bytes,
            "held": used_on_gpus() - before,
            "evictions": stats.evictions,
            "crossed": stats.crossed_bytes / max(1, stats.evictions),
            "staged": stats.staged_layers,
        }


def used_on_gpus() -> int:
    """Return the bytes that all programs hold on NVIDIA's GPUs; 0 without such a GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(int(line) for line in said.split()) * programs.MIB


def llama_case(case: dict) -> dict[str, float]:
    """Read a text and generate after it with llama.cpp's own cache, in this process."""
    peer = Peer.alike(Options(block=BATCH, ubatch=BATCH, threads=case["threads"], gpu_layers=case["layers"]))
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
    parser.add_argument("--archive", default="off", help="of edgekv, where speeds are measured (default: off)")
    parser.add_argument("--memory", action="store_true", help="compare what was held with the plan, and no speeds")
    options = parser.parse_args()

    shared = {"model": str(find_model(options.model)), "layers": options.layers, "threads": options.threads}
    shared |= {"generate": options.generate, "budget": None if options.memory else options.budget}
    shared["archive"] = "auto" if options.memory else options.archive
    book = prose.read_book(options.book)
    figures: dict[int, object] = {}
    for n_tokens in options.tokens or ([8000] if options.memory else [1000, 8000]):
        with prose.vocabulary(options.model) as model:
            text = prose.text_of(model, prose.first_tokens(model, book, n_tokens))
        case = shared | {"text": text}
        figures[n_tokens] = held(n_tokens, case) if options.memory else speeds(n_tokens, case, options.pairs)
    programs.write_json(options.json, figures)


def held(n_tokens: int, case: dict) -> dict:
    """Print what reading a text held beside what was planned."""
    found = programs.in_fresh_process(__file__, case | {"edgekv": True})
    print(f"\n{n_tokens:,} tokens at the ceiling that edgekv chose, MiB:")
    rows = [(place, *(f"{found[name] / programs.MIB:.0f}" for name in names)) for place, names in HELD.items()]
    programs.print_table(("", "planned", "held"), rows)
    return found


def speeds(n_tokens: int, case: dict, n_pairs: int) -> list[dict]:
    """Print the speeds of reading a text and generating after it, in pairs."""
    pairs = []
    for i in range(n_pairs):
        order = (i % 2 == 0, i % 2 == 1)
        found = {ours: programs.in_fresh_process(__file__, case | {"edgekv": ours}) for ours in order}
        pairs.append((found[False], found[True]))
    print(f"\n{n_tokens:,} tokens, tokens a second and MiB:")
    programs.print_pairs(("llama.cpp", "edgekv"), pairs, ("reading", "generating", "host"), {"host": programs.MIB})
    last = pairs[-1][1]
    device, crossed = (last[name] / programs.MIB for name in ("device", "crossed"))
    print(
        f"edgekv: device {device:.0f} MiB, {last['evictions']} evictions, {crossed:.2f} MiB crossed by each, "
        f"{last['staged']} layers staged"
    )
    return [{"llama.cpp": theirs, "edgekv": mine} for theirs, mine in pairs]


if __name__ == "__main__":
    programs.run(main, lambda case: edgekv_case(case) if case["edgekv"] else llama_case(case))
