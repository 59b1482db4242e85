"""Lines of a page: runs of words that stand side by side, with raised and lowered text marked.

Lengths are in points. x goes right and y goes up, as a reader sees the text.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .scripts import LOWERED, RAISED, fraction, written

# lengths below are in heights of a line, some 1.2 times the size of its font
WIDE = 0.9  # a gap between two cells, or two columns
SPACE = 0.15  # a gap between two words
_OVERLAP = 0.1  # runs that stand side by side may share so much
_SMALL = 0.85  # raised and lowered text is at most so high
_RISE, _FAR_RISE = 0.08, 0.25  # its baseline is at least so far off; that of text in full size
_ATTACHED = 0.3  # it is at most so far from the text before it
_MOST_TIMES = 2.2  # a run is at most so many times as high as another in its line

_SCRIPT_CHARS = 12
_LOOKED_AT = 4  # letters of a run that tell its direction


@dataclass(slots=True)
class Run:
    """Words that stand side by side in one size. baseline: the y that they stand on"""

    text: str
    left: float
    right: float
    bottom: float
    top: float
    baseline: float

    @property
    def height(self) -> float:
        """The height of its line, whatever letters it has."""
        return self.top - self.bottom

    def mirrored(self) -> Run:
        """Return the run as a mirror shows it: text that goes left then goes right."""
        return replace(self, left=-self.right, right=-self.left)

    def is_above(self, other: Run) -> bool:
        """Return True for a run that stands above another one, as the upper part of a fraction does."""
        middle = (self.left + self.right) / 2
        return other.left <= middle <= other.right and self.baseline > other.baseline + _RISE * other.height


class Line:
    """Runs that stand in one line, from left to right."""

    def __init__(self, run: Run) -> None:
        self.runs = [run]
        self.main = run  # the highest one

    def takes(self, run: Run) -> bool:
        """Return True if a run stands in this line, beside its runs, or below a raised one."""
        low, high = (run, self.main) if run.height < self.main.height else (self.main, run)
        if not high.bottom <= (low.bottom + low.top) / 2 <= high.top or high.height > _MOST_TIMES * low.height:
            return False
        slack, last = _OVERLAP * high.height, self.runs[-1]
        if run.left >= last.right - slack:
            return True
        if last.is_above(run) and _mark(last, self.main) == RAISED:
            return True
        return all(run.left >= it.right - slack or run.right <= it.left + slack for it in self.runs)

    def add(self, run: Run) -> None:
        """Add a run that this line takes."""
        at = len(self.runs)
        while at and run.right <= self.runs[at - 1].left + _OVERLAP * run.height:
            at -= 1
        self.runs.insert(at, run)
        if run.height > self.main.height:
            self.main = run

    def cells(self) -> list[Run]:
        """Return the runs between wide gaps."""
        cells = [[self.runs[0]]]
        for before, run in itertools.pairwise(self.runs):
            if run.left - before.right >= WIDE * self.main.height:
                cells.append([])
            cells[-1].append(run)
        return [_joined(cell, self.main) for cell in cells]


def _mark(run: Run, base: Run) -> str:
    """Return RAISED or LOWERED for text off the baseline of the text before it; "" = it is neither.

    It is small, or a number that is far off.
    """
    rise, text = (run.baseline - base.baseline) / base.height, run.text.strip()
    is_small = run.height <= _SMALL * base.height and abs(rise) >= _RISE and len(text) <= _SCRIPT_CHARS
    if not (is_small or (text.isdigit() and abs(rise) >= _FAR_RISE)):
        return ""
    return RAISED if rise > 0 else LOWERED


def _joined(runs: Sequence[Run], main: Run) -> Run:
    """Return runs of a line as one."""
    text, base, i = "", main, 0
    while i < len(runs):
        run, following = runs[i], runs[i + 1] if i + 1 < len(runs) else None
        gap = run.left - runs[i - 1].right if i else 0.0
        mark = _mark(run, base) if gap < _ATTACHED * main.height else ""
        if gap >= SPACE * main.height:
            text = text.rstrip(" ") + " "
        if mark == RAISED and following is not None and run.is_above(following):
            text += " " * text[-1:].isdigit() + fraction(run.text.strip(), following.text.strip())
            i += 1
        elif mark:
            text += written(mark, run.text.strip(), text[-1:], "" if following is None else following.text[:1])
        else:
            text += run.text.lstrip(" ") if text.endswith(" ") else run.text
            base = run if run.height > _SMALL * main.height else base
        i += 1
    return Run(text.strip(), runs[0].left, max(it.right for it in runs), main.bottom, main.top, main.baseline)


def goes_left(runs: Iterable[Run]) -> bool:
    """Return True for a page that is read from right to left, as Arabic and Hebrew are."""
    kinds = Counter(unicodedata.bidirectional(letter) for run in runs for letter in run.text[:_LOOKED_AT])
    return kinds["R"] + kinds["AL"] > kinds["L"]


def lines_of(runs: Iterable[Run]) -> list[Line]:
    """Return the lines of runs, in the order of the page's content."""
    lines: list[Line] = []
    for run in runs:
        if not run.text.strip():
            continue
        if lines and lines[-1].takes(run):
            lines[-1].add(run)
        else:
            lines.append(Line(run))
    return lines


def insert(lines: list[Line], run: Run) -> None:
    """Insert a run that is no content of the page, such as the value of a field, at its place."""
    for line in lines:
        if line.takes(run):
            main = line.main
            run.bottom, run.top, run.baseline = main.bottom, main.top, main.baseline
            line.add(run)
            return
    below = (i for i, line in enumerate(lines) if line.main.baseline < run.baseline)
    lines.insert(next(below, len(lines)), Line(run))
