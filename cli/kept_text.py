"""Kept tokens on a terminal: the text in shades, and a map of positions by layer or head.

A shade is a colour behind the text, or a mark in a line below if the terminal has no colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from edgekv.conversations.coverage import ARCHIVED, N_LEVELS, levels
from edgekv.counting import counted

from .render import printable

if TYPE_CHECKING:
    from edgekv.inspection import Kept, Observation

MARKS = " ░▒▓█·"  # marks by shade; the last one is of archived text
STYLES = ("dim", "black on #fff0cc", "black on #ffdd88", "black on #ffc844", "black on #ffb000", "black on #cfe3f5")
TAB = 4


def print_observation(console: Console, found: Observation, layers: Sequence[int]) -> None:
    """Print text, map and keys; `layers` are mapped head by head, the others as they are on average."""
    kept = found.kept
    n_tokens = len(kept.pieces)
    console.print(_headline(found), soft_wrap=True, markup=False)
    print_legend(console, archives=found.plan.archive != "off")
    print_shades(console, zip(kept.pieces, kept.levels.tolist(), strict=True))
    console.print()
    console.print(f"positions 0 to {n_tokens - 1:,}; by layer, the share of its heads; tokens that a head holds")
    for row in _map(kept, layers, console.width):
        console.print(row, soft_wrap=True)
    if found.keys:
        from edgekv.inspection.keys import COLUMNS

        table = Table(*(Column(name, justify="right" if i else "left") for i, name in enumerate(COLUMNS)))
        for study in found.keys:
            table.add_row(*study.as_row())
        console.print(table)


def _headline(found: Observation) -> str:
    stats, options, kept = found.stats, found.options, found.kept
    scored = options.parsed_policy.spec + (f", focus {options.parsed_focus.spec}" if stats.probes else "")
    return (
        f"{scored}; budget {found.plan.budget_cells:,}, {counted(stats.evictions, 'eviction')}; "
        f"of {counted(len(kept.pieces), 'token')} {counted(len(kept.heads), 'head')} kept "
        f"{kept.mask.mean():.0%} on average"
    )


def print_shades(console: Console, runs: Iterable[tuple[str, int]]) -> None:
    """Print a text that comes in runs of one shade each, in colours or with marks in a line below.

    Control characters, which a terminal might obey, are shown as such.
    """
    paragraph = Text()
    for text, shade in runs:
        first, *others = printable(text).split("\n")
        paragraph.append(first, STYLES[shade])
        for other in others:
            _print_shaded(console, paragraph)
            paragraph = Text(other, STYLES[shade])
    if paragraph:
        _print_shaded(console, paragraph)


def _print_shaded(console: Console, paragraph: Text) -> None:
    for line in paragraph.wrap(console, console.width, tab_size=TAB):
        console.print(line, soft_wrap=True)
        if console.color_system is None and line.plain.strip():
            console.print(_marks(line), soft_wrap=True)


def print_legend(console: Console, *, archives: bool) -> None:
    """Print what the shades mean. archives: text that no head holds may be archived"""
    coloured = console.color_system is not None

    def sample(shade: int) -> tuple[str, str]:
        return "   " if coloured else f" {MARKS[shade]} ", STYLES[shade]

    legend = Text("forgotten" if archives else "kept by no head", STYLES[0] if archives and coloured else "")
    for level in range(1, N_LEVELS + 1):
        legend.append(", ").append(*sample(level)).append(f" up to {level / N_LEVELS:.0%}")
    if archives:
        legend.append(", ").append(*sample(ARCHIVED)).append(" archived")
    console.print(legend)


def _marks(line: Text) -> str:
    """A mark below each character of a line, by its shade."""
    marks = [" "] * len(line)
    for span in line.spans:
        marks[span.start : span.end] = MARKS[STYLES.index(str(span.style))] * (span.end - span.start)
    return "".join(mark * cell_len(character) for mark, character in zip(marks, line.plain, strict=False)).rstrip()


def _map(kept: Kept, layers: Sequence[int], width: int) -> Iterator[str]:
    """Yield a line for each layer, or one for each of its heads if it is among `layers`."""
    of_heads = np.array([layer for layer, _ in kept.heads])
    for layer in range(of_heads[-1] + 1):
        rows = kept.mask[of_heads == layer]
        if layer not in layers:
            counts = rows.sum(axis=1)
            held = f"{counts.min():,}" if counts.min() == counts.max() else f"{counts.min():,} to {counts.max():,}"
            yield _line(f"{layer}", rows, held, width)
        else:
            for head, row in enumerate(rows):
                yield _line(f"{layer}, {head}", row[None], f"{row.sum():,}", width)


def _line(name: str, rows: npt.NDArray[np.bool_], held: str, width: int) -> str:
    """Marks by position of the share of rows that hold it."""
    n = rows.shape[1]
    n_columns = max(1, min(n, width - 28))
    starts = np.arange(n_columns) * n // n_columns
    sizes = np.diff(np.append(starts, n)) * len(rows)
    shares = np.add.reduceat(rows.sum(axis=0), starts) / sizes
    return f"{name:>7} {''.join(MARKS[level] for level in levels(shares))} {held}"
