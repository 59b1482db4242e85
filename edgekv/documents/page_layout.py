"""The text of a page, told by where its words stand: columns one after the other, rows of tables, paragraphs.

Lengths are in points. x goes right and y goes up, as a reader sees the text.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from .scripts import LOWERED, RAISED, fraction, written

HYPHEN = "\x02"  # ends a line whose last word goes on in the next one

# lengths below are in heights of a line, some 1.2 times the size of its font
WIDE = 0.9  # a gap between two cells, or two columns
_SPACE = 0.15  # a gap between two words
_OVERLAP = 0.1  # runs that stand side by side may share so much
_SMALL = 0.85  # raised and lowered text is at most so high
_RISE = 0.08  # its baseline is at least so far off
_MOST_TIMES = 2.2  # a run is at most so many times as high as another in its line
_FAR = 4.0  # lines that are so far apart belong to different tables
_PROSE_WIDTH, _PROSE_FILL = 7.0, 0.7  # lines of a column of prose are so wide on average, and fill so much of it
_MARGIN_WIDTH, _MARGIN_FILL = 10.0, 0.6  # lines whose ends are no ends of paragraphs are so wide, and fill so much
_FULL = 0.9  # lines in scripts without small letters fill so much
_FEW_LINES = 3
_MOST_COLUMNS = 64
_LOOKED_AT = 4  # letters of a run that tell its direction

_ITEM = re.compile(r"[-\u2022\u2023\u25e6\u25aa*\u2013\u2014]\s|\(?\w{1,3}[.)]\s")


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
        """Return what stands between wide gaps."""
        cells = [[self.runs[0]]]
        for before, run in itertools.pairwise(self.runs):
            if run.left - before.right >= WIDE * self.main.height:
                cells.append([])
            cells[-1].append(run)
        return [_joined(cell, self.main) for cell in cells]


def _mark(run: Run, main: Run) -> str:
    """Return RAISED or LOWERED for a small run off the baseline; "" = it is neither."""
    if run.height > _SMALL * main.height or abs(run.baseline - main.baseline) < _RISE * main.height:
        return ""
    return RAISED if run.baseline > main.baseline else LOWERED


def _joined(runs: Sequence[Run], main: Run) -> Run:
    """Return runs of a line as one."""
    text, i = "", 0
    while i < len(runs):
        run, mark, size = runs[i], _mark(runs[i], main), 1
        if i and run.left - runs[i - 1].right >= _SPACE * main.height:
            text = text.rstrip(" ") + " "
        if mark == RAISED and i + 1 < len(runs) and run.is_above(runs[i + 1]):
            text += " " * text[-1:].isdigit() + fraction(run.text.strip(), runs[i + 1].text.strip())
            size = 2
        elif mark:
            after = runs[i + 1].text[:1] if i + 1 < len(runs) else ""
            text += written(mark, run.text.strip(), text[-1:], after)
        else:
            text += run.text.lstrip(" ") if text.endswith(" ") else run.text
        i += size
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
    """Put a run that is no content of the page, such as the value of a field, where it stands."""
    for line in lines:
        if line.takes(run):
            main = line.main
            run.bottom, run.top, run.baseline = main.bottom, main.top, main.baseline
            line.add(run)
            return
    below = (i for i, line in enumerate(lines) if line.main.baseline < run.baseline)
    lines.insert(next(below, len(lines)), Line(run))


def text_of_lines(lines: Iterable[Line]) -> str:
    """Return the text of lines: a paragraph, or a row of a table, in each line."""
    rows = [line.cells() for line in lines]
    found: list[str] = []
    at = 0
    while at < len(rows):
        is_table = len(rows[at]) > 1
        end = _end_of_table(rows, at) if is_table else _end_of_prose(rows, at)
        found += _table(rows[at:end]) if is_table else _paragraphs([row[0] for row in rows[at:end]])
        at = end
    return "\n".join(found)


def _end_of_prose(rows: Sequence[Sequence[Run]], at: int) -> int:
    """Return the number of the first row from `at` on that is of a table."""
    return next((i for i in range(at, len(rows)) if len(rows[i]) > 1), len(rows))


def _end_of_table(rows: Sequence[Sequence[Run]], at: int) -> int:
    """Return the number of the first row after `at` that is not of its table."""
    cells = rows[at]
    for i in range(at + 1, len(rows)):
        row, above = rows[i], rows[i - 1]
        if abs(above[0].baseline - row[0].baseline) > _FAR * row[0].height:
            return i
        if len(row) == 1 and _ends_table(row[0], cells):
            return i
        cells = row if len(row) > 1 else cells
    return len(rows)


def _ends_table(line: Run, cells: Sequence[Run]) -> bool:
    """Return True for a line that reaches below several cells, or below the first one as lines of prose do."""
    is_prose = line.right - line.left >= _PROSE_WIDTH * line.height and line.left < cells[0].right
    return is_prose or sum(_overlap(line, cell) for cell in cells) > 1


def _overlap(a: Run, b: Run) -> bool:
    return a.left < b.right and b.left < a.right


class _Columns:
    """Columns of a table, from left to right: what cells that stand below each other cover."""

    def __init__(self, rows: Iterable[Sequence[Run]]) -> None:
        self._places: list[tuple[float, float]] = []
        for row in sorted(rows, key=len, reverse=True):  # a cell over several columns comes after theirs
            for cell in row:
                self._cover(cell)

    def _cover(self, cell: Run) -> None:
        hits = self._hits(cell)
        if not hits:
            self._places.append((cell.left, cell.right))
            self._places.sort()
        elif len(hits) == 1:
            left, right = self._places[hits[0]]
            self._places[hits[0]] = (min(left, cell.left), max(right, cell.right))

    def _hits(self, cell: Run) -> list[int]:
        return [i for i, (left, right) in enumerate(self._places) if cell.left < right and left < cell.right]

    def __len__(self) -> int:
        return len(self._places)

    def of(self, cell: Run) -> int:
        """Return the number of a cell's first column."""
        return next(iter(self._hits(cell)), 0)


def _table(rows: Sequence[Sequence[Run]]) -> list[str]:
    """Return a line for each row; if the columns are of prose, their paragraphs, one column after the other."""
    if max(map(len, rows)) > _MOST_COLUMNS:
        return ["\t".join(_plain(cell.text) for cell in row) for row in rows]
    columns = _Columns(rows)
    by_column: list[list[Run]] = [[] for _ in range(len(columns))]
    lines = []
    for row in rows:
        line, at = "", 0
        for i, cell in enumerate(row):
            column = columns.of(cell)
            by_column[column].append(cell)
            line += "\t" * max(column - at, int(i > 0)) + _plain(cell.text)
            at = max(column, at + (i > 0))
        lines.append(line)
    if all(map(_is_prose, by_column)):
        return [line for column in by_column for line in _paragraphs(column)]
    return lines


def _is_prose(column: Sequence[Run]) -> bool:
    """Return True if the lines of a column are long, fill it, and begin within sentences."""
    if len(column) < _FEW_LINES:
        return False
    widths = [line.right - line.left for line in column]
    mean = sum(widths) / len(widths)
    begins_within = 4 * sum(line.text[:1].islower() for line in column) >= len(column)
    fill = _PROSE_FILL if begins_within else _FULL
    return mean >= max(_PROSE_WIDTH * column[0].height, fill * max(widths))


def _paragraphs(lines: Sequence[Run]) -> Iterator[str]:
    """Yield the paragraphs of lines below each other. A line ends one if the next word would have had room in it."""
    text = ""
    for block in _blocks(lines):
        margin = _margin(block)
        pitch = median([a.baseline - b.baseline for a, b in itertools.pairwise(block)] or [0.0])
        for line, following in itertools.zip_longest(block, block[1:]):
            text += line.text
            if text.endswith(HYPHEN) and line is not lines[-1]:
                text = text.removesuffix(HYPHEN)
            elif following is not None and margin is not None and _goes_on(line, following, margin, pitch):
                text += "" if _is_wide(text[-1:]) and _is_wide(following.text[:1]) else " "
            else:
                yield _plain(text)
                text = ""


def _blocks(lines: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield lines of one size that follow each other closely."""
    block: list[Run] = []
    for line in lines:
        if block:
            last, height = block[-1], line.height
            is_alike = abs(last.height - height) < 0.15 * height and abs(last.left - line.left) < _FAR * height
            if not is_alike or not 0 < last.baseline - line.baseline < 2 * height:
                yield block
                block = []
        block.append(line)
    if block:
        yield block


def _margin(block: Sequence[Run]) -> float | None:
    """Return the x at which lines are broken; None = these are no prose, or no two of them agree on it."""
    left, margin, height = min(line.left for line in block), max(line.right for line in block), block[0].height
    fill = sum(line.right - left for line in block) / (len(block) * max(1.0, margin - left))
    n_full = sum(margin - line.right < height for line in block)
    return margin if n_full > 1 and margin - left > _MARGIN_WIDTH * height and fill >= _MARGIN_FILL else None


def _goes_on(line: Run, following: Run, margin: float, pitch: float) -> bool:
    """Return True if a paragraph goes on from a line to the one below."""
    height, text = line.height, following.text
    word = len(text.split(maxsplit=1)[0]) * (following.right - following.left) / len(text)
    return bool(
        line.baseline - following.baseline <= 1.25 * pitch
        and (following.left < line.left + 0.5 * height or _ITEM.match(line.text))
        and line.right + _SPACE * height + word > margin
        and not _ITEM.match(text)
    )


def _is_wide(character: str) -> bool:
    """Return True for a character of a script without spaces."""
    return bool(character) and unicodedata.east_asian_width(character) in "WF"


def _plain(text: str) -> str:
    return text.replace(HYPHEN, "-")
