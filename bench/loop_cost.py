"""Measures what finding loops costs for each token, and counts the texts that it would stop: real texts are no loops.

    python bench/loop_cost.py FILE...

Each file is tokenised by the vocabulary of the default model and read as one reply. Drawn rules, and rows of one mark,
are loops by definition.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from edgekv.binding.model import Model
from edgekv.generation.loops import LoopDetector
from edgekv.models import find_model
from edgekv.options import Options


def main() -> None:
    """Print the stops, and the time for each token."""
    seconds = n_tokens = n_stops = 0
    with Model(find_model(), Options(), no_alloc=True) as model:
        for path in map(Path, sys.argv[1:]):
            tokens = model.tokenize(path.read_text(encoding="utf-8", errors="replace"))
            stops = []
            detector, started = LoopDetector(), time.process_time()
            for i, token in enumerate(tokens):
                if detector.loops_after(token):
                    stops.append(i)
                    detector = LoopDetector()
            seconds += time.process_time() - started
            n_tokens += len(tokens)
            n_stops += len(stops)
            for i in stops:
                print(f"{path}: stopped after {i} tokens: ...{''.join(model.text(tokens[i - 30 : i + 1]))!r}")
    if not n_tokens:
        sys.exit("name text files")
    print(f"{n_tokens:,} tokens, {n_stops} stops, {1e6 * seconds / n_tokens:.2f} us a token")


if __name__ == "__main__":
    main()
