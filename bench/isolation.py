"""Measure the cost of a process of its own: an isolated runtime's reading and generating against this process's.

Claim (bench/RESULTS.md): an isolated runtime is nearly as fast as one in the process.

Both are open at once, are given the same text, and take turns: text by text while they read, token by token while they
generate. Figures are medians of the ratio of speeds.

    python bench/isolation.py --book novel.txt --threads 1
"""

from __future__ import annotations

import sys

import edgekv
from edgekv.evals import prose
from edgekv.generation.sampler import GREEDY
from edgekv.testing import programs

# Before anything was measured: a token takes one message and one answer of some 100 bytes, that is two switches of
# processes, about 0.1 ms. One token of the 135M model takes 10 ms or more. What that left out: between two tokens all
# weights go through the caches, so that an exchange of 0.02 ms takes 0.2 ms.
PREDICTIONS = {"reading": "1.000", "generating": "0.992"}
LEAST = 0.98


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=12, help="pairs of replies")
    parser.add_argument("--read", type=int, default=512, help="tokens read for each")
    parser.add_argument("--say", type=int, default=64, help="tokens generated in each")
    options = parser.parse_args()
    book = prose.read_book(options.book)
    with prose.vocabulary(options.model) as model:
        text = prose.text_of(model, prose.first_tokens(model, book, options.read))
    settings = {"memory": "1TiB", "budget": options.read + 2 * options.say, "threads": options.threads}
    reading, saying = [], []
    with (
        edgekv.Runtime(options.model, isolated=True, **settings) as apart,
        edgekv.Runtime(options.model, **settings) as here,
    ):
        for i in range(options.pairs + 1):
            with apart.session() as a, here.session() as h:
                said = {"max_tokens": options.say, "allow_loops": True, "sampling": GREEDY}
                ours, plain = (session.generate(text, **said) for session in (a, h))
                first = programs.in_turn(i, lambda ours=ours: next(ours), lambda plain=plain: next(plain))
                tokens = [
                    programs.in_turn(k, lambda ours=ours: next(ours, None), lambda plain=plain: next(plain, None))
                    for k in range(options.say - 2)
                ]
                ours.close()
                plain.close()
                if a.stats.generated_tokens != h.stats.generated_tokens or a.n_past != h.n_past:
                    raise RuntimeError(f"not the same reply: {a.stats} and {h.stats}")
            if i > 0:  # the first pair warms up
                reading.append(first)
                saying += tokens
    measured = {"reading": reading, "generating": saying}
    programs.print_table(
        ["isolated against here", "meant", "predicted", "measured", "pairs"],
        [
            (what, f">= {LEAST}", PREDICTIONS[what], f"{programs.median(ratios):.4f}", len(ratios))
            for what, ratios in measured.items()
        ],
    )
    programs.write_json(options.json, {what: programs.median(ratios) for what, ratios in measured.items()})
    sys.exit(min(map(programs.median, measured.values())) < LEAST)


if __name__ == "__main__":
    main()
