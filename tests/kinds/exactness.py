"""Bounds on the distance of logits of one text: by the order of sums, and by a wrong set of cells.

The errors are the largest of one token, over the deviation of its logits. llama.cpp sums short batches in f16, and
every layer amplifies what those below it made of that. A ring of a window has its cells in another order than a cache
of the whole text, so models with windows differ already where nothing is evicted.
"""

from __future__ import annotations

import numpy as np

# measured: hybrids at most 5.9e-3, windows 3.6e-2, gemma4 5.0e-2, the 64 layers of exaone4 8.3e-2
BOUND, BOUND_OF = 1e-2, {"exaone4": 1e-1, "gemma4": 8e-2}
BOUND_OF |= dict.fromkeys(("gemma2", "gemma3", "cohere2", "olmo2", "llama4", "gpt-oss"), 5e-2)
WRONG = 0.12  # a wrong set for one head of one layer gives at least 0.149


# Where two experts are all but equal, the order of sums decides which a token goes to: one token may lie anywhere.
WITH_EXPERTS = ("glm4moe", "gpt-oss", "jamba", "llama4", "qwen3next")
WITH_EXPERTS += ("deepseek2", "deepseek2-decompressed")


def bound_of(name):
    """The largest error of a family's logits."""
    return BOUND_OF.get(name, BOUND)


def worst(name, found, expected):
    """The largest error of any token, or the second largest of a family with experts."""
    errors = sorted(map(error, found, expected))
    return errors[-2 if name in WITH_EXPERTS else -1]


def error(found, expected):
    """The largest error over the deviation of the logits."""
    return np.abs(found - expected).max() / expected.std()


def distance(found, expected):
    """Root mean square."""
    return np.sqrt(np.mean((found - expected) ** 2))
