"""The work of a block loop, in figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    """Counters of a block loop, named as in `Stats`; times in seconds."""

    evictions: int = 0
    evicted_cells: int = 0
    repositions: int = 0
    probes: int = 0
    probe_s: float = 0.0
    score_s: float = 0.0
    compact_s: float = 0.0
    switch_s: float = 0.0
    crossed_bytes: int = 0
    staged_layers: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    recalls: int = 0
    recalled_cells: int = 0
    recall_s: float = 0.0
    scanned_tokens: int = 0
    archived_bytes: int = 0
    archive_s: float = 0.0
