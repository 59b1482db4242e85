"""Many clients at once: does every request end, does the ceiling hold, is nobody told what another one asked?

    python tests/stress/server_load.py [--clients 64] [--requests 3] [--longest 20000] [--leaving 0.1] [-- ...]

Each request reads a text of its own length with a number planted in it, and asks for that number. Some clients leave at
a random moment, and some read their streams slowly. Those that are told to wait (429) wait and ask again. With
`--seconds` clients ask on until then. Options after `--` go to `edgekv serve`.

A number of another client in a reply must not be; one that is not found is the model's and the budget's affair.
Predicted: no request lost, none mixed up, and a peak below the ceiling.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections import Counter

import httpx

from edgekv.testing.server_process import Serving, serving

PAUSE_S = 0.2  # a slow client takes it after each part of a stream
SHARES = (80, 18, 2)  # shares of texts up to a hundredth of the longest, up to a tenth, and longer ones
WORDS = ("the", "old", "house", "by", "the", "river", "stood", "where", "two", "roads", "met")


PLANTED: set[str] = set()  # by all clients


def text_with(number: int, n_words: int, chance: random.Random) -> str:
    """A text in which somebody has a number."""
    words = [WORDS[i % len(WORDS)] for i in range(n_words)]
    words.insert(chance.randrange(len(words) + 1), f"\nThe secret number is {number}.\n")
    return " ".join(words)


async def client(name: int, url: str, arguments: argparse.Namespace, ended: Counter[str]) -> None:
    chance = random.Random(f"{arguments.seed}-{name}")
    async with httpx.AsyncClient(base_url=url, timeout=3600) as http:
        for i in itertools.count():
            if time.perf_counter() > arguments.until if arguments.until else i == arguments.requests:
                return
            number = chance.randrange(10**6, 10**7)
            longest = chance.choices([arguments.longest // 100, arguments.longest // 10, arguments.longest], SHARES)[0]
            PLANTED.add(str(number))
            text = text_with(number, max(20, chance.randrange(longest // 2, longest + 1)), chance)
            body = {
                "messages": [
                    {"role": "user", "content": text},
                    {"role": "user", "content": "What is the secret number? Answer with the number alone."},
                ],
                "max_tokens": 24,
                "temperature": 0,
                "stream": chance.random() < 0.5,
            }
            pause_s = PAUSE_S if chance.random() < arguments.slow else 0.0
            leaves = chance.random() < arguments.leaving
            try:
                async with asyncio.timeout(chance.uniform(0.05, 20) if leaves else 3600):
                    ended[await asked(http, body, number, pause_s)] += 1
            except TimeoutError:
                ended["left"] += 1


async def asked(http: httpx.AsyncClient, body: dict[str, object], number: int, pause_s: float) -> str:
    """Send a request until it is admitted, and return how it ended; take a break after every part of its answer."""
    while True:
        parts = []
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for part in answer.aiter_bytes():
                parts.append(part)
                await asyncio.sleep(pause_s)
        text = b"".join(parts).decode()
        if answer.status_code == 429:
            await asyncio.sleep(float(answer.headers["retry-after"]) * random.uniform(0.5, 1.5))
            continue
        if answer.status_code != 200:
            return f"status {answer.status_code} {json.loads(text)['error']['code']}"
        if body["stream"]:
            chunks = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
            if chunks[-1] != "[DONE]":
                return "stream without an end"
            choices = [choice for chunk in chunks[:-1] for choice in json.loads(chunk)["choices"]]
            said = "".join(choice["delta"].get("content", "") for choice in choices)
        else:
            said = json.loads(text)["choices"][0]["message"]["content"]
        if str(number) in said:
            return "found"
        return "MIXED UP" if any(other in said for other in PLANTED) else "not found"


async def load(server: Serving, arguments: argparse.Namespace) -> Counter[str]:
    ended: Counter[str] = Counter()
    work = [asyncio.create_task(client(i, server.url, arguments, ended)) for i in range(arguments.clients)]
    while not all(task.done() for task in work):
        await asyncio.sleep(20)
        print(f"  {sum(ended.values())} ended, peak {server.peak_bytes() / (1 << 20):.1f} MiB", flush=True)
    await asyncio.gather(*work)
    return ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=3)
    parser.add_argument("--longest", type=int, default=20_000, help="words of the longest texts")
    parser.add_argument("--leaving", type=float, default=0.1, help="part of the requests whose client leaves")
    parser.add_argument("--slow", type=float, default=0.1, help="part of the requests whose client reads slowly")
    parser.add_argument("--seconds", type=int, help="ask on for so long, whatever the number of requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    started = time.perf_counter()
    arguments.until = started + arguments.seconds if arguments.seconds else None
    with serving(["--timeout", "36000", *arguments.options]) as server:
        ended = asyncio.run(load(server, arguments))
        props = httpx.get(f"{server.url}/props").json()
        ceiling, peak = props["ceiling_bytes"], server.peak_bytes()
        print(f"{sum(ended.values())} requests in {time.perf_counter() - started:.0f} s: {dict(ended.most_common())}")
        print(f"peak {peak / (1 << 20):.1f} MiB of {ceiling / (1 << 20):.1f} MiB, {props['budget']} cells")
        print("below the ceiling" if peak <= ceiling else "OVER THE CEILING")


if __name__ == "__main__":
    main()
