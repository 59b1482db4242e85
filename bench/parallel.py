"""Tokens per second of several replies that share steps, over those of one.

    python bench/parallel.py [-m MODEL] [--memory SIZE] [--threads N]

The first table is of steps alone, in processor time. The second is of whole replies in threads, in wall time.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import edgekv
from edgekv.binding.cache import Cache
from edgekv.generation.sampler import GREEDY

MOST, N_STEPS, N_ROUNDS, N_TOKENS = 8, 12, 3, 100
TEXT = range(10, 74)  # token ids that every slot has read before


def step_seconds(runtime: edgekv.Runtime, n: int) -> float:
    """Return the median processor time of a step with a token of each of n slots."""
    caches = [block_loop.cache for block_loop in runtime.block_loops]
    for cache in caches:
        cache.clear()
        cache.feed(list(TEXT))
    seconds = []
    for i in range(N_STEPS):
        started = time.process_time()
        Cache.feed_together([(cache, [5 + i + j], True) for j, cache in enumerate(caches[:n])])
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


def tokens_per_second(runtime: edgekv.Runtime, n: int) -> float:
    """Return the tokens per second of n replies in threads together."""
    generated = []

    def reply(i: int) -> None:
        with runtime.session() as session:
            for _ in session.chat(f"Tell me story number {i}.", max_tokens=N_TOKENS, sampling=GREEDY, allow_loops=True):
                pass
            generated.append(session.stats.generated_tokens)

    threads = [threading.Thread(target=reply, args=(i,)) for i in range(n)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(generated) / (time.perf_counter() - started)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model")
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with edgekv.Runtime(
        arguments.model, memory=arguments.memory, threads=arguments.threads, budget=256, parallel=MOST
    ) as runtime:
        seconds: dict[int, list[float]] = {n: [] for n in (1, 2, 3, 4, 6, 8)}
        for _ in range(N_ROUNDS):
            for n, measured in seconds.items():
                measured.append(step_seconds(runtime, n))
        one = min(seconds[1])
        for n, measured in seconds.items():
            print(
                f"{n} in a step: {min(measured) * 1e3:7.2f} ms, {n * one / min(measured):.2f} times the tokens of one"
            )
        alone = tokens_per_second(runtime, 1)
        for n in (1, 2, 4, 8):
            together = tokens_per_second(runtime, n)
            print(f"{n} replies: {together:7.1f} tok/s, {together / alone:.2f} of one")


if __name__ == "__main__":
    main()
