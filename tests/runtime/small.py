"""A runtime with few cells, which forgets what is evicted, and texts that are more than it holds."""

from __future__ import annotations

SETTINGS = {
    **{"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16},
    "archive": "off",
    "prompt_lookup": "off",  # a clock decides if a draft is decoded, and the last logits may be of its tokens
}


def words(n, word="word"):
    return " ".join(f"{word}{i % 97}" for i in range(n))
