"""Formulas of MathML and of Word in one line: 3/4 for a fraction, 10^6 for a power."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .scripts import LOWERED, RAISED, fraction, grouped


@dataclass
class _Element:
    """An open element. parts: what its elements read; signs: brackets, or the operator of a sum, by Word's names"""

    tag: str
    parts: list[str] = field(default_factory=list)
    signs: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """Return the element in one line."""
        parts = [part.strip() for part in self.parts if part.strip()]
        known = _LINES.get((self.tag, len(parts)))
        if known is not None:
            return known(*parts)
        if self.tag == "msqrt":
            return _root(_in_turn(parts))
        if self.tag == "d":
            return self.signs.get("begChr", "(") + "|".join(parts) + self.signs.get("endChr", ")")
        if self.tag == "nary":
            *limits, term = parts or [""]
            return self.signs.get("chr", "\u222b") + "".join(map(_marked, (LOWERED, RAISED), limits)) + f" {term}"
        if self.tag in _ROWS:
            return ", ".join(parts) + "; "
        return "" if self.tag in _LEFT_OUT else _in_turn(self.parts)


def _in_turn(parts: Iterable[str]) -> str:
    """Return parts that follow each other, with a blank between two numbers, such as those of 3 1/2."""
    line = ""
    for part in parts:
        line += " " * (line[-1:].isdigit() and part[:1].isdigit()) + part
    return line


def _marked(mark: str, text: str) -> str:
    return mark + grouped(text)


def _power(base: str, above: str) -> str:
    return grouped(base) + (_marked(RAISED, above) if any(map(str.isalnum, above)) else above)


def _index(base: str, below: str) -> str:
    return grouped(base) + (_marked(LOWERED, below) if any(map(str.isalnum, below)) else below)


def _both(base: str, below: str, above: str) -> str:
    return grouped(base) + _marked(LOWERED, below) + _marked(RAISED, above)


def _root(base: str, degree: str = "") -> str:
    return f"\u221a{f'[{degree}]' if degree else ''}{grouped(base)}"


# elements of MathML and of Word, by name and number of parts; the parts of others follow each other
_LINES: Mapping[tuple[str, int], Callable[..., str]] = {
    **{(tag, 2): fraction for tag in ("mfrac", "f")},
    **{(tag, 2): _power for tag in ("msup", "mover", "sSup", "limUpp")},
    **{(tag, 2): _index for tag in ("msub", "munder", "sSub", "limLow")},
    **{(tag, 3): _both for tag in ("msubsup", "munderover", "sSubSup")},
    ("rad", 1): _root,
    ("mroot", 2): _root,
    ("rad", 2): lambda degree, base: _root(base, degree),
}
_ROWS = {"mtr", "mlabeledtr", "mr"}  # rows of a matrix
_LEFT_OUT = {"annotation", "annotation-xml"}  # the formula once more, in another notation
_SIGNS = {"begChr": "dPr", "endChr": "dPr", "chr": "naryPr"}  # Word's elements with a sign, and where they stand


class Formula:
    """A formula that is fed element by element."""

    def __init__(self) -> None:
        self._open = [_Element("math")]

    def start(self, tag: str, value: str = "") -> None:
        """Begin an element. value: its attribute `val`"""
        if self._open[-1].tag == _SIGNS.get(tag) and len(self._open) > 1:
            self._open[-2].signs[tag] = value
        self._open.append(_Element(tag))

    def text(self, data: str) -> None:
        """Add text to the open element."""
        self._open[-1].parts.append(data)

    def end(self, tag: str) -> None:
        """End an element, and those in it that are still open."""
        if all(it.tag != tag for it in self._open[1:]):
            return
        ended = ""
        while ended != tag:
            ended = self._pop()

    def line(self) -> str:
        """Return the formula in one line, and end it."""
        while len(self._open) > 1:
            self._pop()
        return _in_turn(self._open[0].parts).strip("; ")

    def _pop(self) -> str:
        element = self._open.pop()
        self._open[-1].parts.append(element.line())
        return element.tag
