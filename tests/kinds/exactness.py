"""Distances of the logits of one text. The errors are the largest of one token, over the deviation of its logits."""

from __future__ import annotations

import numpy as np

# Where two experts are all but equal, the order of sums decides which a token goes to: one token may lie anywhere.
WITH_EXPERTS = ("glm4moe", "gpt-oss", "jamba", "llama4", "qwen3next")
WITH_EXPERTS += ("deepseek2", "deepseek2-decompressed")


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
