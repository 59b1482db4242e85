"""Write a page as a text: gaps between texts, marks of items, rows of tables, raised and lowered text."""

from __future__ import annotations

from dataclasses import dataclass, field

from .scripts import written

# gaps between two texts; the widest wins
NOTHING, BLANK, LINE, PARAGRAPH = range(4)
_GAPS = ("", " ", "\n", "\n\n")

CELL_CHARS = 400  # a cell with more text is prose, and keeps its lines
SCRIPT_CHARS = 100  # raised text of more is a text of its own
MOST_COLUMNS = 1000


@dataclass
class _Table:
    """The place in an open table.

    column, written: columns of the current cell, and of the row's last one with text
    free: the column after the current cell
    covered: rows that a cell above still covers, by column
    cell_chars: characters of the current cell so far; None = no cell is open
    goes_on: True = the line has text of this row already
    """

    column: int = 0
    written: int = 0
    free: int = 0
    covered: dict[int, int] = field(default_factory=dict)
    cell_chars: int | None = None
    goes_on: bool = False

    def begin_row(self) -> None:
        for column in [it for it in self.covered if it >= self.free]:
            self._cover(column, self.covered[column] - 1)
        self.column = self.written = self.free = 0
        self.goes_on, self.cell_chars = False, None

    def begin_cell(self) -> None:
        while self.free in self.covered:
            self._cover(self.free, self.covered[self.free] - 1)
            self.free += 1
        self.column, self.cell_chars = self.free, 0
        self.widen(1)

    def widen(self, columns: int, rows: int = 1) -> None:
        """Make the current cell this wide."""
        self.free = min(self.column + max(1, columns), MOST_COLUMNS)
        for column in range(self.column, self.free):
            self._cover(column, rows - 1)

    def _cover(self, column: int, rows: int) -> None:
        if rows > 0:
            self.covered[column] = rows
        else:
            self.covered.pop(column, None)

    def tabs(self) -> str:
        """Return the tabs before the first text of a cell, which lead to its column."""
        tabs = "\t" * (self.column - self.written)
        self.written, self.goes_on = self.column, True
        return tabs


@dataclass
class _Script:
    """Raised or lowered text, and the gap before it."""

    mark: str
    gap: int
    text: str = ""


class TextWriter:
    """Takes texts and the gaps between them, and yields the text so far, piece by piece.

    A row of a table is a line with a tab between cells, each below its heading. A table in a cell has lines of its own,
    and the row goes on below them.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._gap = NOTHING
        self._prefix = ""
        self._last = ""  # the last character
        self._tables: list[_Table] = []
        self._script: _Script | None = None  # it is written when the next character is known
        self._in_script = False

    def take(self) -> str:
        """Return the text since the last call, up to raised text whose end is not known."""
        taken = "".join(self._pieces)
        self._pieces.clear()
        return taken

    def gap(self, gap: int) -> None:
        """Ask for a gap before the next text."""
        if gap >= LINE:
            self._write_script()
        self._gap = max(self._gap, min(gap, BLANK) if self._is_in_cell() else gap)

    def prefix(self, mark: str) -> None:
        """Set a mark of a heading or an item, which is written before the next text; "" = none."""
        self._prefix = mark

    def put(self, text: str) -> None:
        """Write text. Its own line breaks and tabs are kept, but not in a cell."""
        if not text:
            return
        if self._script is not None and self._in_script:
            if len(self._script.text) + len(text) <= SCRIPT_CHARS:
                self._script.text += _GAPS[min(self._gap, BLANK)] * bool(self._script.text) + text
                self._gap = NOTHING
                return
            self._write_script(plain=True)
        self._write_script(after=_GAPS[self._gap][:1] or text[0])
        self._write(text)

    def begin_script(self, mark: str) -> None:
        """Begin raised or lowered text. If the last such text ended right before, go on with it."""
        if self._script is not None and self._script.mark == mark and self._gap == NOTHING:
            self._in_script = True
            return
        self._write_script(after=_GAPS[self._gap][:1])
        self._script, self._in_script, self._gap = _Script(mark, self._gap), True, NOTHING

    def end_script(self) -> None:
        """End raised or lowered text, if it is open."""
        self._in_script = False

    def finish(self) -> None:
        """End the text."""
        self._write_script()

    def begin_table(self) -> None:
        """Begin a table, perhaps in a cell of another."""
        self._tables.append(_Table())
        self.gap(PARAGRAPH if len(self._tables) == 1 else LINE)

    def end_table(self) -> None:
        """End a table."""
        if self._tables:
            self._write_script()
            self._tables.pop()
        if self._tables:  # the row around it goes on in a line of its own
            outer = self._tables[-1]
            outer.goes_on, outer.written = False, 0
            outer.cell_chars = None if outer.cell_chars is None else 0
        self._gap = max(self._gap, LINE if self._tables else PARAGRAPH)

    def begin_rows(self) -> None:
        """Begin a group of rows, into which no cell reaches from above."""
        if self._tables:
            self._tables[-1].covered.clear()

    def begin_row(self) -> None:
        """Begin a row. Outside tables it is a line."""
        self._write_script()
        if self._tables:
            self._tables[-1].begin_row()
        self._gap = max(self._gap, LINE)

    def begin_cell(self) -> None:
        """Begin a cell. Outside tables a blank is before it."""
        self._write_script()
        if self._tables:
            self._tables[-1].begin_cell()
        else:
            self.gap(BLANK)

    def begin_prose(self) -> None:
        """Take the current cell for prose: it begins with a line of its own, and keeps its lines."""
        if self._is_in_cell():
            self._write_script()
            table = self._tables[-1]
            table.cell_chars, table.written, table.goes_on = CELL_CHARS, table.column, False

    def widen_cell(self, columns: int, rows: int = 1) -> None:
        """Make the current cell so many columns wide, and so many rows high."""
        if self._tables:
            self._tables[-1].widen(columns, rows)

    def _is_in_cell(self) -> bool:
        """Return True for a cell whose text stays in its line."""
        n_chars = self._tables[-1].cell_chars if self._tables else None
        return n_chars is not None and n_chars < CELL_CHARS

    def _write_script(self, after: str = "", *, plain: bool = False) -> None:
        """Write raised or lowered text that has ended. after: the next character; "" = none

        plain: it is too long to be raised or lowered
        """
        script, self._script, self._in_script = self._script, None, False
        if script is None:
            return
        gap, self._gap = self._gap, max(script.gap, BLANK * script.text[:1].isspace())
        if text := script.text.strip():
            before = _GAPS[self._gap][:1] or self._last
            self._write(text if plain else written(script.mark, text, before, after))
        self._gap = max(self._gap, gap, BLANK * script.text[-1:].isspace())

    def _write(self, text: str) -> None:
        table = self._tables[-1] if self._tables else None
        lead = ""
        if table is not None and table.cell_chars is not None:
            if table.cell_chars == 0:
                self._gap = NOTHING if table.goes_on else max(self._gap, LINE)
                lead = table.tabs()
            if self._is_in_cell():
                text = text.replace("\n", " ").replace("\t", " ")
            table.cell_chars += len(text)
        gap = _GAPS[self._gap] if self._last else ""
        self._pieces += [gap, lead, self._prefix, text]
        self._gap, self._prefix, self._last = NOTHING, "", text[-1]
