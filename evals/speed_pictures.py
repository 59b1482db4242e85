"""Pictures of a `SpeedRun`: time to first token by policy and block, speed and peak memory by length of the history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgekv.sizes import MIB

from .extra import needed
from .speed import STOCK

Summary = dict[str, Any]  # one of the "cases" of `SpeedRun.as_dict`

DOTS_PER_INCH = 150


def draw_all(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write ttft.png (the longest prompt), speed.png and memory.png (the first block); returns their paths.

    Raises ConfigError without the extra "eval".
    """
    folder.mkdir(parents=True, exist_ok=True)
    longest = max(s["n_tokens"] for s in summaries)
    of_longest = [s for s in summaries if s["n_tokens"] == longest]
    of_block = [s for s in summaries if s["block"] == summaries[0]["block"]]
    speeds = {"prefill_tok_per_s": "prompt tokens/s", "decode_tok_per_s": "generated tokens/s"}
    return [
        draw_ttft(of_longest, folder / "ttft.png"),
        draw_lines(of_block, speeds, folder / "speed.png"),
        draw_lines(of_block, {"peak_bytes": "peak memory, MiB"}, folder / "memory.png"),
    ]


def draw_ttft(summaries: Sequence[Summary], path: Path) -> Path:
    """Time to first token, a group of bars for each block, a bar for each policy (KeyDiff's Figure 7)."""
    blocks = sorted({s["block"] for s in summaries})
    lines = _by_name(summaries)
    figure, (axes,) = _figure(1)
    width = 0.8 / len(lines)
    for i, (name, of_name) in enumerate(lines.items()):
        places = [blocks.index(s["block"]) + (i - (len(lines) - 1) / 2) * width for s in of_name]
        medians, errors = _values(of_name, "ttft_s")
        axes.bar(places, medians, width, yerr=errors, capsize=3, label=name, color=_color(name, i))
    axes.set_xticks(range(len(blocks)), [f"block {block}" for block in blocks])
    axes.set_ylabel("time to first token, s")
    axes.set_title(f"a prompt of {summaries[0]['n_tokens']:,} tokens")
    return _save(figure, axes, path)


def draw_lines(summaries: Sequence[Summary], figures: dict[str, str], path: Path) -> Path:
    """Figures by the length of the history: a panel for each, a line for each policy, stock llama.cpp's in grey.

    figures: which of a summary, and what they are called
    """
    figure, panels = _figure(len(figures))
    for axes, (key, label) in zip(panels, figures.items(), strict=True):
        for i, (name, of_name) in enumerate(_by_name(summaries).items()):
            of_name.sort(key=lambda s: int(s["n_tokens"]))
            medians, errors = _values(of_name, key)
            lengths = [s["n_tokens"] for s in of_name]
            axes.errorbar(lengths, medians, errors, marker="o", capsize=3, label=name, color=_color(name, i))
        axes.set_xlabel(f"tokens of history (block {summaries[0]['block']})")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    return _save(figure, panels[0], path)


def _by_name(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    found: dict[str, list[Summary]] = {}
    for summary in summaries:
        found.setdefault(summary["name"], []).append(summary)
    return found


def _figure(n_panels: int) -> tuple[Any, list[Any]]:
    # A figure of its own, without pyplot: no window system, nothing shared with a program that draws too.
    figure = needed("matplotlib.figure").Figure(figsize=(1 + 5 * n_panels, 4.5), layout="constrained")
    return figure, list(figure.subplots(1, n_panels, squeeze=False)[0])


def _color(name: str, i: int) -> str:
    return "dimgrey" if name == STOCK else f"C{i}"


def _values(summaries: Sequence[Summary], key: str) -> tuple[list[float], list[list[float]]]:
    """Medians, and how far the ends of the ranges are from them, (2, n)."""
    scale = 1 / MIB if key == "peak_bytes" else 1
    medians, lows, highs = ([s[key][name] * scale for s in summaries] for name in ("median", "min", "max"))
    below = [median - low for median, low in zip(medians, lows, strict=True)]
    above = [high - median for median, high in zip(medians, highs, strict=True)]
    return medians, [below, above]


def _save(figure: Any, axes: Any, path: Path) -> Path:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center")
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path
