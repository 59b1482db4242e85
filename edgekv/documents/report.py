"""A conversion's report: pages that it found, and why it failed. It goes from the converting process as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from edgekv.errors import InputError

# kinds of text that is left out
STRUCK, DELETED, HIDDEN = "struck-out text", "deleted text", "hidden text"

MOST_RANGES = 20  # ranges of pages that a message names
MOST_NOTES = 20
NOTE_CHARS = 300


class BlankTextError(InputError):
    """A text or a document holds nothing, or nothing but blanks."""


class DocumentError(Exception):
    """A document cannot be converted. The message goes on after the document's name."""


@dataclass
class Report:
    """Figures of a conversion.

    n_pages: 0 = the format has no pages
    blank: ranges [first, last] of pages without text, the first few
    n_blank: number of pages without text
    left_out: number of characters of each kind of text that was left out
    notes: further messages about the document, the first few; each goes on after its name
    error: why the document cannot be converted; "" = it was
    """

    n_pages: int = 0
    blank: list[list[int]] = field(default_factory=list)
    n_blank: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: str = ""

    def add_blank(self, page: int) -> None:
        """Note a page without text, each after those before it."""
        self.n_blank += 1
        if self.blank and self.blank[-1][1] == page - 1:
            self.blank[-1][1] = page
        elif len(self.blank) < MOST_RANGES:
            self.blank.append([page, page])

    def leave_out(self, what: str, text: str) -> None:
        """Note a text that is left out. what: its kind"""
        if n_chars := len(text.strip()):
            self.left_out[what] = self.left_out.get(what, 0) + n_chars

    def note(self, told: str) -> None:
        """Note something to tell; "" = nothing."""
        if told and len(self.notes) < MOST_NOTES:
            self.notes.append(told[:NOTE_CHARS])

    def blank_pages(self) -> str:
        """Return the pages without text, as people write them: "3-5, 9"."""
        ranges = [f"{first}-{last}" if last > first else str(first) for first, last in self.blank]
        n_named = sum(last - first + 1 for first, last in self.blank)
        return ", ".join([*ranges, *([f"and {self.n_blank - n_named:,} more"] if n_named < self.n_blank else [])])

    def as_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self))


def report_of(text: str) -> Report | None:
    """Return the report that a process wrote last; None = it ended without one."""
    try:
        return Report(**json.loads(text.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        return None
