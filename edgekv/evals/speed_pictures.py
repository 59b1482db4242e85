"""Pictures of a `SpeedRun`: time to first token by policy and block, speed and peak memory by length of the history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekv.memory.sizes import MIB

from . import pictures
from .pictures import Estimate
from .speed import PEERS

Summary = dict[str, Any]  # one of the "cases" of `SpeedRun.as_dict`

BY_LENGTH = {
    "prefill": ("prefill_tok_per_s", "prompt tokens/s"),
    "decode": ("decode_tok_per_s", "generated tokens/s"),
    "memory": ("peak_bytes", "peak memory, MiB"),
}


def draw_all(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write ttft.png (the longest prompt; KeyDiff's Figure 7), and prefill.png, decode.png and memory.png (the first
    block); returns their paths. Raises ConfigError without the extra "eval".
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [folder / "ttft.png"]
    longest = max(s["n_tokens"] for s in summaries)
    bars: dict[str, dict[str, float | Estimate]] = defaultdict(dict)
    for s in summaries:
        if s["n_tokens"] == longest:
            bars[_label(s)][f"block {s['block']}"] = _range(s, "ttft_s")
    title = f"a prompt of {longest:,} tokens"
    pictures.bars(drawn[0], bars, title=title, label="time to first token, s", of="policy")
    block = summaries[0]["block"]
    for name, (key, label) in BY_LENGTH.items():
        lines: dict[str, dict[int, Estimate]] = defaultdict(dict)
        for s in summaries:
            if s["block"] == block:
                lines[_label(s)][s["n_tokens"]] = _range(s, key)
        drawn.append(folder / f"{name}.png")
        pictures.history_lines(drawn[-1], lines, title=f"block {block}", label=label)
    return drawn


def _label(summary: Summary) -> str:
    """Return the name of a case beside those of another program."""
    return summary["name"] if summary["policy"] in PEERS else f"edgekv, {summary['name']}"


def _range(summary: Summary, key: str) -> Estimate:
    """The median, the smallest and the largest of the repeats."""
    scale = MIB if key == "peak_bytes" else 1
    median, low, high = (summary[key][name] / scale for name in ("median", "min", "max"))
    return median, low, high
