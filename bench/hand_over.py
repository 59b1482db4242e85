"""Measure the cost of a hand-over: what a token takes that the loop's thread gives to a session, over one without.

Claim (bench/RESULTS.md): with the default model a hand-over costs at most 1 % of a token.

One reply is generated, a few tokens by the session's generator and as many by stepping its block loop in this thread,
by turns. The runs of a pair share what else the machine does and the length of the text, so their ratio is compared.

    python bench/hand_over.py
    python bench/hand_over.py --threads 1 --pairs 400 --model tiny.gguf
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import edgekv
from edgekv.cells.feeds import Feed
from edgekv.generation.sampler import Sampling
from edgekv.loop.loop import Loop
from edgekv.testing import programs

SAMPLING = Sampling(temperature=1.0, seed=0)  # hot enough that drafts seldom come
PROMPT = "Tell the story of a lighthouse keeper who counts the waves."


class Direct:
    """Steps the reply that a loop has open in this thread, which the loop's own does not notice."""

    def __init__(self, loop: Loop) -> None:
        (reply,) = loop._replies.values()
        self._events = reply.events
        self._decode = loop.engine.loaded.decoder.decode

    def __next__(self) -> str:
        event = next(self._events)
        while not isinstance(event, str) or not event:
            event = self._events.send(self._decode([event])[0]) if isinstance(event, Feed) else next(self._events)
        return event


class Costs(NamedTuple):
    """Microseconds of a token: by the clock, and of processors."""

    wall: float
    processor: float


def costs(take: Callable[[], object], n: int, steps: Callable[[], int]) -> Costs:
    """Return the costs of a token, of at least n."""
    wall, processor, before = time.perf_counter(), time.process_time(), steps()
    while steps() < before + n:
        take()
    done = steps() - before
    return Costs((time.perf_counter() - wall) * 1e6 / done, (time.process_time() - processor) * 1e6 / done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path or known name of a GGUF model (default: the default model)")
    parser.add_argument("--threads", type=int, help="default: one for every processor")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=2, help="tokens of a run")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    with edgekv.Runtime(options.model, memory="100%", budget=512, threads=options.threads) as runtime:
        session = runtime.session()
        reply = session.chat(
            PROMPT,
            max_tokens=1_000_000,
            sampling=SAMPLING,
            allow_loops=True,
            ignore_eos=True,
        )
        next(reply)
        loop = runtime._engine.channel.loop  # type: ignore[attr-defined]
        direct, steps = Direct(loop), lambda: loop.engine.loaded.decoder.n_steps
        pairs = []
        for i in range(options.pairs):
            found = {}
            for way in (reply, direct) if i % 2 else (direct, reply):
                found[way] = costs(lambda way=way: next(way), options.tokens, steps)
            pairs.append((found[reply], found[direct]))
        reply.close()
    figures = {}
    for kind in Costs._fields:
        ours, plain = ([getattr(pair[i], kind) for pair in pairs] for i in (0, 1))
        ratios = sorted(a / b for a, b in zip(ours, plain, strict=True))
        middle, quartiles = statistics.median(ratios), (ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4])
        us = statistics.median(ours), statistics.median(plain)
        print(f"{kind}: {us[0]:.0f} us handed over, {us[1]:.0f} us direct; ", end="")
        print(f"ratio of a pair {middle:.4f}, {quartiles[0]:.4f} to {quartiles[1]:.4f}")
        figures[kind] = {"us": us, "ratio": middle, "quartiles": quartiles}
    programs.write_json(options.json, figures)


if __name__ == "__main__":
    main()
