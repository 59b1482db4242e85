"""Ceilings that move under a loop that a test drives: its model, settings and ceilings, and what the kernel counts."""

from __future__ import annotations

from pathlib import Path

from small import words

CELLS, LOW = 256, 96
SETTINGS = {"memory": "1GiB", "budget": CELLS, "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16}
TEXT = words(120)  # some 400 tokens
MODEL = {"n_ctx_train": 1 << 14, "n_layer": 4, "n_head": 4, "n_head_kv": 4, "head_dim": 64}


def ceiling_of(engine, n_cells=LOW):
    """Return the ceiling under which a runtime has so many cells, or a few less."""
    opened = engine._opened
    return opened.peak_bytes - (CELLS - n_cells) * opened.cell_bytes * engine.n_slots


def mapped():
    """Return the bytes of this process by kind, as the kernel adds them up over all of its pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return {kind: int(size) << 10 for kind, size in (line.removesuffix(" kB").split(":") for line in lines)}
