"""Measure the cost of staying inside a budget, as ratios of interleaved runs; times alone follow the machine's load.

Claim (bench/RESULTS.md): what scoring and compacting add to the time of decoding.

    free      nothing to evict: edgekv's reading and generation against a plain llama_decode loop over a context of the
              same parameters. Both tokenise, feed and sample; speed of edgekv / speed of the loop
    share     reading at a full cache: time to score and compact over time to decode the block before it, with several
              policies taking turns, block by block. At its fullest the cache holds N + B cells
    history   generation with a long history against a short one, at the same budget, so with the same cells;
              speed after the long one / speed after the short one
    ceiling   a ceiling that nobody moves: processor time of a look at the system's pressure, of the second that has one
              with `yields`; and of generation beside a ledger that is read after each token, without it / with it

    python bench/overhead.py --book novel.txt
    python bench/overhead.py --book novel.txt --model llama-3.2-1b.gguf --part free --part share
    python bench/overhead.py --book novel.txt --part history --history 50000
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import edgekv
from edgekv.binding.cache import Cache
from edgekv.binding.policy import cache_params
from edgekv.evals import prose
from edgekv.evals.stock import Peer, StockLoop
from edgekv.generation.sampler import GREEDY, Sampler
from edgekv.memory.pressure import system_pressure
from edgekv.memory.yielding import LOOK_S
from edgekv.testing import programs

PARTS = ("free", "share", "history", "ceiling")

# policy -> the most that its share should be
SHARE_POLICIES = {
    **dict.fromkeys(["keydiff", "keydiff(kernel=15)", "l2norm", "sink", "random"], 0.03),
    "tova": 0.04,
    **dict.fromkeys(["snapkv", "snapkv(aggregate=max)", "ahakv"], 0.08),
    **{f"{base}+{wrapper}": 0.12 for base in ("snapkv", "ahakv") for wrapper in ("caote", "fastcaote", "critical")},
    "keydiff+caote": 0.12,
    "h2o": 0.25,
    "keydiff(anchor=median)": 1.0,
    "keydiff(rope=off)": 0.04,
}

Row = tuple[str, str, str, int]  # what, meant, measured, number of pairs


@contextmanager
def opened(options, **settings: object) -> Iterator[edgekv.Runtime]:
    """A runtime with what the command line says."""
    settings = {"model": options.model, "threads": options.threads, "block": options.block} | settings
    with edgekv.Runtime(memory="100%", repack=False, prompt_lookup="off", **settings) as runtime:
        yield runtime


def run_free(options, book: str) -> list[Row]:
    """edgekv with room for everything against the plain loop: in turn text by text, then token by token."""
    n_read, n_say = options.read, 32
    reading, saying = [], []
    with opened(options, budget=n_read + 2 * n_say) as runtime:
        text = prose.text_of(runtime.model, prose.first_tokens(runtime.model, book, n_read))
        loop = Peer.alike(runtime.options).loop(runtime.model, runtime.plan.n_cells)
        for i in range(options.pairs + 1):
            with runtime.session() as session:
                ours = session.generate(text, max_tokens=n_say, allow_loops=True, sampling=GREEDY)
                plain = plain_reply(loop, text)
                first, *tokens = (
                    programs.in_turn(k, lambda ours=ours: next(ours, None), lambda plain=plain: next(plain))
                    for k in range(i, i + n_say)
                )
                if session.stats.evictions or session.stats.finish_reason not in ("length", "closed"):
                    raise RuntimeError(f"not the run that was meant: {session.stats}")
            if i > 0:  # the first pair warms up
                reading.append(first)
                saying += tokens
        loop.close()
    return [
        ("reading, nothing to evict", ">= 0.97", f"{programs.median(reading):.3f}", len(reading)),
        ("generating, nothing to evict", ">= 0.97", f"{programs.median(saying):.3f}", len(saying)),
    ]


def plain_reply(loop: StockLoop, text: str) -> Iterator[int]:
    """Read the text into llama.cpp's own cache, then yield token after token, as a session's reply does."""
    loop.read(loop.context.model.tokenize(text, begin=True))
    while True:
        token = loop.sample()
        yield token
        loop.step(token)


def run_share(options, book: str) -> list[Row]:
    """Score and compact against the decoding of a block, once the cache is full; policies take turns of two blocks.

    The first block of a turn does not count: what a policy carries with the cells is not up to date then.
    """
    block, budget = options.block, options.share_budget
    policies = [edgekv.policies.parse_policy(spec) for spec in options.policy or SHARE_POLICIES]
    shares: list[list[float]] = [[] for _ in policies]
    with opened(options, budget=budget) as runtime:
        n_blocks = 1 + 2 * len(policies) * options.blocks
        tokens = prose.first_tokens(runtime.model, book, budget + block * n_blocks)
        runtime.block_loop.cache.close()
        cache = runtime.block_loop.cache = Cache(runtime.context, cache_params(policies, block))
        for p0 in range(0, len(tokens) - block + 1, block):
            started = time.perf_counter()
            cache.feed(tokens[p0 : p0 + block])
            decoded = time.perf_counter()
            if cache.n_cells > budget:
                turn = (p0 - budget) // block
                policy = turn // 2 % len(policies)
                cache.compact(policies[policy], budget, n_sink=runtime.options.n_sink)
                if turn % 2:
                    shares[policy].append((time.perf_counter() - decoded) / (decoded - started))
    return [
        (
            policy.spec,
            f"<= {most:.0%}" if (most := SHARE_POLICIES.get(policy.spec)) else "",
            f"{programs.median(share):.2%}",
            len(share),
        )
        for policy, share in zip(policies, shares, strict=True)
    ]


def run_history(options, book: str) -> list[Row]:
    """Generation speed after a long history against a short one; both runtimes stay open and take turns."""
    n_step = 16
    budget, ratios = options.history_budget, []
    with opened(options, budget=budget) as long, opened(options, budget=budget) as short:
        n_all = options.history + n_step * (options.pairs + 1)
        tokens = prose.first_tokens(long.model, book, n_all)
        for runtime, n in ((short, options.short_history), (long, options.history)):
            runtime.block_loop.clear()
            runtime.block_loop.read(tokens[:n], lambda _: True)
        sampler = Sampler(GREEDY)

        def speed(runtime: edgekv.Runtime, steps: list[int]) -> float:
            started = time.perf_counter()
            for token in steps:
                sampler.sample(runtime.context)
                runtime.block_loop.step(token)
            return len(steps) / (time.perf_counter() - started)

        for i in range(options.pairs + 1):
            steps = tokens[options.history + i * n_step :][:n_step]
            first, second = (long, short) if i % 2 else (short, long)
            speeds = {first: speed(first, steps), second: speed(second, steps)}
            if i > 0:
                ratios.append(speeds[long] / speeds[short])
        sampler.close()
    return [("generating after a long history", ">= 0.97", f"{programs.median(ratios):.3f}", len(ratios))]


def run_ceiling(options, book: str) -> list[Row]:
    """The processor time of what a ceiling that may move adds while it stays: looks at the pressure, and the ledger."""
    looks, read = [], []
    is_short = system_pressure()
    for _ in range(options.looks):
        started = time.thread_time()
        is_short()
        looks.append(time.thread_time() - started)
    with opened(options, budget=options.history_budget) as runtime, runtime.session() as session:
        tokens = prose.first_tokens(runtime.model, book, options.short_history)
        "".join(session.generate(prose.text_of(runtime.model, tokens), max_tokens=1))

        def generate(after_each: Callable[[], object] = lambda: None) -> None:
            n_step = options.block  # each run evicts once
            for _ in session.generate("\n", max_tokens=n_step, ignore_eos=True, allow_loops=True, sampling=GREEDY):
                after_each()

        for i in range(options.pairs + 1):
            read.append(programs.in_turn(i, lambda: generate(lambda: runtime.ledger), generate, time.process_time))
    return [
        ("looking at the pressure, of all time", "<= 1 %", f"{programs.median(looks) / LOOK_S:.3%}", options.looks),
        ("generating, the ledger read at each token", "", f"{programs.median(read[1:]):.3f}", options.pairs),
    ]


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="repeatable (all)")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=16, help="pairs of runs in `free`, `history` and `ceiling`")
    parser.add_argument("--read", type=int, default=512, help="tokens read in `free`")
    parser.add_argument("--share-budget", type=int, default=2048, help="cells in `share`")
    parser.add_argument("--blocks", type=int, default=8, help="blocks for each policy in `share`")
    parser.add_argument("--policy", action="append", help="policy in `share`; repeatable")
    parser.add_argument("--looks", type=int, default=1000, help="looks at the pressure in `ceiling`")
    parser.add_argument("--history", type=int, default=50_000, help="tokens of the long history")
    parser.add_argument("--short-history", type=int, default=2_000, help="tokens of the short one, and in `ceiling`")
    parser.add_argument("--history-budget", type=int, default=512, help="cells in `history` and `ceiling`")
    options = parser.parse_args()

    book = prose.read_book(options.book)
    runs = {"free": run_free, "share": run_share, "history": run_history, "ceiling": run_ceiling}
    rows = [row for part in options.part or PARTS for row in runs[part](options, book)]
    header = ("what", "meant", "measured", "pairs")
    programs.print_table(header, rows)
    programs.write_json(options.json, [dict(zip(header, row, strict=True)) for row in rows])


if __name__ == "__main__":
    main()
