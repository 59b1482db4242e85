"""Pictures of measurements, PNG files: from plain numbers, and the same bytes for the same numbers.

All need the extra "eval" (ConfigError without it), and overwrite the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgekv.extras import needed

# Okabe and Ito's colours, which the colour-blind can tell apart; with marks, and other lines if colours run out.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^vPX"
LINES = ("-", "--", ":", "-.")

LOOK = {
    "figure.dpi": 150,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#DDDDDD",
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
}
SLANTED: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}  # labels of ticks

Estimate = tuple[float, float, float]  # a value, and the ends of its range


@contextmanager
def drawn_axes(path: Path, title: str, x_label: str, y_label: str, size: tuple[float, float]) -> Iterator[Any]:
    """Yield the axes of a picture, which is saved at the end."""
    matplotlib = needed("matplotlib", "eval")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # no settings of the user's
        matplotlib.rcParams.update(LOOK)
        figure = needed("matplotlib.figure", "eval").Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        yield axes
        figure.savefig(path, format="png", metadata={"Software": None})


def history_lines(
    path: Path,
    lines: Mapping[str, Mapping[int, float | Estimate]],
    *,
    title: str,
    label: str,
    of: str = "tokens read before",
) -> None:
    """Draw a value, as speed or memory, by tokens or what `of` says: a line for each name, with ranges if known."""
    with drawn_axes(path, title, of, label, _size(list(lines))) as axes:
        for i, (name, line) in enumerate(lines.items()):
            tokens = sorted(line)
            heights, ranges = _with_range([line[n] for n in tokens])
            axes.errorbar(tokens, heights, ranges, capsize=3, label=name, **_style(i))
        axes.set_ylim(0, 1.1 * axes.dataLim.y1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        _draw_legend(axes)


def bars(path: Path, values: Mapping[str, Mapping[str, float | Estimate]], *, title: str, label: str, of: str) -> None:
    """Draw groups of bars: values[group][bar], with a range if it has one. `of` names the groups."""
    names = list(dict.fromkeys(name for group in values.values() for name in group))
    with drawn_axes(path, title, of, label, (2 + 0.35 * len(values) * (len(names) + 1), 4.5)) as axes:
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            shift = (i - (len(names) - 1) / 2) * width
            places = [g + shift for g, group in enumerate(values.values()) if name in group]
            heights, ranges = _with_range([group[name] for group in values.values() if name in group])
            axes.bar(places, heights, width, yerr=ranges, capsize=3, label=name, color=_style(i)["color"])
        axes.axhline(0, color="black", linewidth=0.8)
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(values)), list(values), **SLANTED)
        _draw_legend(axes)


def _size(names: Sequence[str]) -> tuple[float, float]:
    """Inches of a picture whose lines have these names beside it."""
    return 5.8 + 0.085 * max(map(len, names)), max(4.5, 0.6 + 0.24 * len(names))


def _with_range(values: Sequence[float | Estimate]) -> tuple[list[float], list[list[float]] | None]:
    """Values, and how far down and up their ranges reach, (2, n); None if they have none."""
    known = [value for value in values if isinstance(value, tuple)]
    if len(known) < len(values):
        return [value for value in values if not isinstance(value, tuple)], None
    return [value for value, _, _ in known], [[v - low for v, low, _ in known], [high - v for v, _, high in known]]


def _draw_legend(axes: Any) -> None:
    """Put the legend beside the axes, so that it hides nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _style(i: int) -> dict[str, Any]:
    """Return the style of the i-th line. After all colours comes the next kind of line."""
    again, colour = divmod(i, len(COLOURS))
    return {"color": COLOURS[colour], "marker": MARKS[colour], "linestyle": LINES[again % len(LINES)]}
