"""Ceilings that move under a loop that a test drives: its model and settings, and a ceiling for so many cells."""

from __future__ import annotations

from small import words

CELLS, LOW = 256, 96
SETTINGS = {"memory": "1GiB", "budget": CELLS, "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16}
TEXT = words(120)  # some 400 tokens
MODEL = {"n_ctx_train": 1 << 14, "n_layer": 4, "n_head": 4, "n_head_kv": 4, "head_dim": 64}


def ceiling_of(engine, n_cells=LOW):
    """Return the ceiling under which a runtime has so many cells, or a few less."""
    opened = engine._opened
    return opened.peak_bytes - (CELLS - n_cells) * opened.cell_bytes * engine.n_slots
