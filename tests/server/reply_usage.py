"""The usage of a reply, for tests of its rendering."""

from __future__ import annotations

from edgekv.api.reply_request import Usage

USAGE = Usage(
    prompt_tokens=100,
    cached_tokens=60,
    completion_tokens=7,
    reasoning_tokens=3,
    seen=107,
    kept=90,
    evicted=17,
    evictions=2,
    peak_bytes=1000,
    ceiling_bytes=2000,
    budget=80,
)
