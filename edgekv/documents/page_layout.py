"""Order the text of a page by the places of its lines: columns one after the other, rows of tables, paragraphs."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from .page_lines import SPACE, Line, Run

HYPHEN = "\x02"  # ends a line whose last word goes on in the next one

# lengths below are in heights of a line, some 1.2 times the size of its font
_FAR = 4.0  # lines that are so far apart belong to different tables
_PROSE_WIDTH, _PROSE_FILL = 7.0, 0.7  # lines of a column of prose are so wide on average, and fill so much of it
_FULL = 0.9  # lines in scripts without small letters fill so much
_MARGIN_WIDTH, _MARGIN_FILL = 10.0, 0.6  # lines whose ends are no ends of paragraphs are so wide, and fill so much

_FEW_LINES = 3
_MOST_COLUMNS = 64
_ITEM = re.compile(r"[-\u2022\u2023\u25e6\u25aa*\u2013\u2014]\s|\(?\w{1,3}[.)]\s")


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
    """Columns of a table, from left to right. A column is as wide as the cells that stand below each other."""

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
        and line.right + SPACE * height + word > margin
        and not _ITEM.match(text)
    )


def _is_wide(character: str) -> bool:
    """Return True for a character of a script without spaces."""
    return bool(character) and unicodedata.east_asian_width(character) in "WF"


def _plain(text: str) -> str:
    return text.replace(HYPHEN, "-")
