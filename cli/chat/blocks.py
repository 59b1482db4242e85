"""Cut growing Markdown into finished blocks, which can be printed, and one that still changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = 4096  # characters of a block; what is longer is cut between two words

_FENCE = re.compile(r"\s*(`{3,}|~{3,})([^`]*)$")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_RULE = re.compile(r" {0,3}([-*_])(\s*\1){2,}\s*$")
_ITEM = re.compile(r"(\s*)([-*+]|\d{1,9}[.)])(\s+|$)")


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, a heading, an item of a list, a table, a rule; or one line of code.

    gap: an empty line precedes the block
    """

    text: str
    is_code: bool = False
    gap: bool = False


class Blocks:
    """The blocks of a text that comes in pieces. Items of a list, and lines of code, are blocks of their own."""

    def __init__(self) -> None:
        self._line = ""  # the line that is not complete yet
        self._lines: list[str] = []  # lines of the open block
        self._indent = 0  # columns of the open list item's text; 0 = no item is open
        self._gap = False  # True = an empty line precedes the open block
        self._fence = ""  # the fence that closes the open code
        self._blank = False  # True = the last line was empty
        self._before = ""  # the kind of the block before: "item", "other", or "" for none

    def add(self, text: str) -> Iterator[Block]:
        """Yield the blocks that a piece completes."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            yield from self._take(line.rstrip("\r"))
        while not self._fence and len(whole := self._rest()) > LONGEST:
            cut = whole.rfind(" ", LONGEST // 2, LONGEST) + 1 or LONGEST
            yield Block(whole[:cut], gap=self._gap)
            self._gap, self._before = False, ""  # the rest belongs to the same block
            *self._lines, self._line = whole[cut:].split("\n")

    def end(self) -> Iterator[Block]:
        """Yield the last blocks, when the text has ended."""
        yield from self._take(self._line)
        self._line = ""
        yield from self._close()

    @property
    def unfinished(self) -> Block | None:
        """The block that still changes, as far as it has come; None = there is none."""
        if self._fence:
            return Block(self._line, is_code=True, gap=self._gap)
        text = self._rest()
        gap = self._gap if self._lines else self._gap_before(bool(_ITEM.match(text)))
        return Block(text, gap=gap) if text.strip() else None

    def _rest(self) -> str:
        return "\n".join([*self._lines, *([self._line] if self._line else [])])

    def _take(self, line: str) -> Iterator[Block]:
        if self._fence:
            yield from self._take_code(line)
            return
        fence, item = _FENCE.match(line), _ITEM.match(line)
        is_rule = bool(_RULE.match(line))
        if not line.strip():
            if not self._indent:
                yield from self._close()
            self._blank = True
        elif fence:
            yield from self._close()
            self._fence, self._gap, self._before = fence[1], bool(self._before), "other"
        elif self._indent and len(line) - len(line.lstrip()) >= self._indent:
            self._lines += [""] * self._blank + [line]
            self._blank = False
        elif item and not is_rule:
            yield from self._close()
            self._begin(line, indent=max(2, item.end()))
        elif _HEADING.match(line) or (is_rule and not self._lines):
            yield from self._close()
            self._begin(line)
            yield from self._close()
        elif self._lines and not self._blank:
            self._lines.append(line)
        else:
            yield from self._close()
            self._begin(line)

    def _take_code(self, line: str) -> Iterator[Block]:
        mark = line.strip()
        if len(mark) >= len(self._fence) and not mark.strip(self._fence[0]):
            self._fence, self._blank = "", False
        else:
            yield Block(line, is_code=True, gap=self._gap)
            self._gap = False

    def _begin(self, line: str, indent: int = 0) -> None:
        self._gap = self._gap_before(is_item=bool(indent))
        self._lines, self._indent, self._blank = [line], indent, False

    def _gap_before(self, is_item: bool) -> bool:
        """Return True if an empty line precedes a block that begins here: not between the items of a tight list."""
        return bool(self._before) and (self._blank or not is_item or self._before != "item")

    def _close(self) -> Iterator[Block]:
        if self._lines:
            yield Block("\n".join(self._lines), gap=self._gap)
            self._before = "item" if self._indent else "other"
        self._lines, self._indent = [], 0
