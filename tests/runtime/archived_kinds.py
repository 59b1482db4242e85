"""Runtimes with an archive, of each kind that keeps its rows in another way."""

from __future__ import annotations

ARCHIVED = {"policy": "keydiff", "archive": "64MiB", "reposition": "never", "allow_beyond_trained": True}
KINDS = {
    "plain": {},
    "turned": {"reposition": "always"},
    "q8_0": {"kv_type": "q8_0"},
    "heads apart": {"policy": "keydiff+ada"},
    "means": {"policy": "keydiff+ada+merge"},
    "slots": {"parallel": 2},
}
