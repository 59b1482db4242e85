"""Measures settings of the sampler on a small model: facts that it says, words that are none, loops, and variety.

    python bench/sampling.py --book BOOK [--book BOOK ...] [--seeds 6] [--model MODEL]

Every setting answers the same questions with the same seeds. A *fact* is a question whose answer has to hold a word. A
*strange word* is one of a reply that no book holds. *Variety* is the share of replies to one open request that begin
with other words than all replies before.
"""

from __future__ import annotations

import argparse
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import edgekv

FACTS = (
    ("What is the capital of France?", "paris"),
    ("What is the capital of Italy?", "rome"),
    ("What is the capital of Japan?", "tokyo"),
    ("What is the capital of Germany?", "berlin"),
    ("What is the largest planet of our solar system?", "jupiter"),
    ("Who wrote Romeo and Juliet?", "shakespeare"),
    ("How many days does a week have?", "seven|7"),
    ("What is the opposite of hot?", "cold"),
    ("Which colour has the sky on a clear day?", "blue"),
    ("Who was the first president of the United States?", "washington"),
    ("What do bees make?", "honey"),
    ("What is two plus two?", "four|4"),
)
REQUESTS = (
    "Write a short poem about the sea.",
    "Give me three tips for a better sleep.",
    "Begin a story about a fox in the snow.",
    "Write a polite letter that asks for a day off.",
)
# temperature, top_k, top_p, min_p, repeat_penalty
SETTINGS = (
    (0.7, 40, 0.95, 0.0, 1.1),
    (0.5, 40, 0.95, 0.1, 1.1),
    (0.3, 40, 0.95, 0.05, 1.1),
    (0.3, 40, 0.95, 0.1, 1.1),
    (0.7, 40, 0.95, 0.1, 1.1),
    (0.0, 40, 0.95, 0.0, 1.1),
)
FACT_TOKENS, OPEN_TOKENS = 40, 120
AT_ONCE = 8  # replies
BEGINNING = 8  # words by which the variety of replies is told


@dataclass
class Tally:
    """Figures of one setting."""

    n_facts: int = 0
    n_right: int = 0
    n_words: int = 0
    n_strange: int = 0
    n_open: int = 0
    n_loops: int = 0
    beginnings: dict[str, list[str]] = field(default_factory=dict)

    def row(self) -> str:
        """Return the figures as a row of a Markdown table."""
        varied = sum(len(set(found)) for found in self.beginnings.values())
        return (
            f"{self.n_right} of {self.n_facts} | {1000 * self.n_strange / max(1, self.n_words):.1f} | "
            f"{self.n_loops} of {self.n_open} | {varied} of {self.n_open} |"
        )


def words_of(text: str) -> list[str]:
    """Return the words of a text, in small letters."""
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower().replace("\u2019", "'"))


def measure(rt: edgekv.Runtime, sampling: tuple[float, int, float, float, float], seeds: int, known: set[str]) -> Tally:
    """Answer all questions with all seeds, several at once; returns the figures."""
    temperature, top_k, top_p, min_p, penalty = sampling
    tally = Tally()

    def answered(asked: tuple[str, int], chosen: edgekv.Sampling) -> tuple[str, str | None]:
        text, n_tokens = asked
        with rt.session() as session:
            return "".join(session.chat(text, max_tokens=n_tokens, sampling=chosen)), session.stats.finish_reason

    asked = [*((question, FACT_TOKENS) for question, _ in FACTS), *((request, OPEN_TOKENS) for request in REQUESTS)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for seed in range(seeds if temperature else 1):
            chosen = edgekv.Sampling(
                temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=penalty, seed=seed
            )
            replies = list(threads.map(lambda it, chosen=chosen: answered(it, chosen), asked))
            for (_, expected), (reply, _) in zip(FACTS, replies, strict=False):
                tally.n_facts += 1
                tally.n_right += re.search(expected, reply.lower()) is not None
            for request, (reply, reason) in zip(REQUESTS, replies[len(FACTS) :], strict=True):
                tally.n_open += 1
                tally.n_loops += reason == "loop"
                tally.beginnings.setdefault(request, []).append(" ".join(words_of(reply)[:BEGINNING]))
            for reply, _ in replies:
                count_words(tally, reply, known)
    return tally


def count_words(tally: Tally, reply: str, known: set[str]) -> None:
    """Count the words of a reply, but the last one, which may be cut."""
    words = words_of(reply)[:-1]
    tally.n_words += len(words)
    tally.n_strange += sum(word not in known for word in words)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--book", type=Path, action="append", required=True)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--model")
    options = parser.parse_args()
    known = {word for book in options.book for word in words_of(book.read_text(encoding="utf-8"))}
    print("| temperature | top_k | top_p | min_p | penalty | facts | strange words in 1,000 | loops | variety |")
    print("|---|---|---|---|---|---|---|---|---|")
    with edgekv.Runtime(options.model, memory="1GiB", budget=512, parallel=AT_ONCE) as rt:
        for sampling in SETTINGS:
            tally = measure(rt, sampling, options.seeds, known)
            print("| " + " | ".join(map(str, sampling)) + " | " + tally.row(), flush=True)


if __name__ == "__main__":
    main()
