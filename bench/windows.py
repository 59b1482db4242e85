"""A model with sliding windows reads a long text under a ceiling, against llama.cpp's own cache for such models.

Claim (bench/RESULTS.md): where only a few layers see the whole text, eviction saves memory, and reading costs no more.

llama.cpp keeps the windows at their true size and, in the layers that see everything, every token. edgekv gets a budget
of cells for those layers, and the ceiling that this takes. Both run in edgekv's library, with the same batches, type of
cache, threads and order of weights. Every run is a fresh process that warms up, the two run in turn, each pair begins
with the other one, and the table shows medians of their ratios within a pair. Processor time is that of all threads.

    python -m edgekv.testing.models.families gemma3-1b gemma3-1b.gguf --quantization Q8_0
    python bench/windows.py --book novel.txt --model gemma3-1b.gguf --threads 1
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import edgekv
from edgekv.binding.model import Context, Model
from edgekv.evals import prose
from edgekv.evals.stock import Peer
from edgekv.memory.process import peak_resident_bytes
from edgekv.models.catalog import find_model
from edgekv.options import Options
from edgekv.testing import programs

N_WARM_UP = 128  # tokens that are read first, so that the weights are in memory


class WindowContext(Context):
    """llama.cpp's own cache, whose windows hold no more than a window and a batch."""

    def llama_params(self, model: Model, n_cells: int, options: Options) -> Any:
        params = super().llama_params(model, n_cells, options)
        params.swa_full = False
        return params


def options_of(case: dict) -> dict[str, Any]:
    """Return the options that both sides share."""
    return {"threads": case["threads"], "block": case["block"], "kv_type": case["kv_type"], "repack": False}


def measured(read: Callable[[list[int]], object], tokens: list[int]) -> dict[str, object]:
    """Measure the reading of the tokens, after a warm-up that loads the weights."""
    read(tokens[:N_WARM_UP])
    started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    read(tokens)
    seconds, now = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return {"seconds": seconds, "processor seconds": processor, "peak": peak_resident_bytes()}


def read_ours(case: dict) -> dict[str, object]:
    """Read with the budget, in this process, whose plan is the ceiling that it must keep."""
    settings = options_of(case) | {"budget": case["budget"], "focus": False, "policy": case["policy"]}
    with edgekv.Runtime(case["model"], memory="100%", **settings) as runtime:
        block_loop, ceiling = runtime.block_loop, runtime.plan.peak_bytes

        def read(tokens: list[int]) -> None:
            block_loop.clear()
            block_loop.read(tokens, lambda _: True)

        figures = measured(read, case["tokens"])
        if figures["peak"] > ceiling or block_loop.cache.n_past != len(case["tokens"]):
            raise RuntimeError(f"not the run that was meant: {figures}, a ceiling of {ceiling}")
        return figures | {"ceiling": ceiling}


def read_plain(case: dict) -> dict[str, object]:
    """Read into llama.cpp's own cache, in this process."""
    options = Options(memory="100%", **options_of(case))
    peer = Peer(options, WindowContext, options.n_ubatch)
    with Model(find_model(case["model"]), options) as model, closing(peer.loop(model, len(case["tokens"]))) as loop:
        return measured(loop.read, case["tokens"])


SIDES = {"plain": read_plain, "ours": read_ours}


def main() -> None:
    """Measure pairs, and print medians and ratios."""
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--length", type=int, default=32_000, help="tokens of the text")
    parser.add_argument("--budget", type=int, default=2_048, help="cells of a head in the layers that see everything")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--policy", default="keydiff")
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()

    with prose.vocabulary(args.model) as model:
        tokens = prose.first_tokens(model, prose.read_book(args.book), args.length)
    names = ("threads", "budget", "block", "kv_type", "policy")
    case = {"model": str(find_model(args.model)), "tokens": tokens} | {name: getattr(args, name) for name in names}

    pairs: list[tuple[dict, dict]] = []
    for i in range(args.pairs):
        order = ("ours", "plain") if i % 2 else ("plain", "ours")
        done = {side: programs.in_fresh_process(__file__, case | {"side": side}) for side in order}
        pairs.append((done["plain"], done["ours"]))
    print(f"{len(tokens):,} tokens, {args.budget:,} cells, ceiling {pairs[0][1]['ceiling'] / programs.MIB:.0f} MiB")
    programs.print_pairs(
        ("llama.cpp", "edgekv"), pairs, ("seconds", "processor seconds", "peak"), {"peak": programs.MIB}
    )
    programs.write_json(args.json, pairs)


if __name__ == "__main__":
    programs.run(main, lambda case: SIDES[case["side"]](case))
