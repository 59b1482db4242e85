"""Styles of a DOCX, and the numbers of its lists: parts of their own, which paragraphs refer to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .archive import Archive
from .numbering import number
from .xml import Attributes, elements

LEVELS = 9

_HEADING = re.compile("heading ([1-6])", re.IGNORECASE)
_TRAITS = frozenset({"strike", "dstrike", "vanish", "vertAlign"})
_OFF = frozenset({"0", "false", "off"})
_KINDS = {"lowerLetter": "a", "upperLetter": "A", "lowerRoman": "i", "upperRoman": "I"}
_BULLET, _NONE = "bullet", "none"
_PLACE = re.compile("%([1-9])")


def is_on(given: Attributes) -> str:
    """Return the value of an element that sets a trait of text; "" = it takes the trait away."""
    value = given.get("val", "true")
    return "" if value in _OFF else value


def whole(given: Attributes, otherwise: int = 0) -> int:
    """Return the whole number that an element has for its value, or another if it has none."""
    value = given.get("val", "")
    return int(value) if re.fullmatch("[0-9]{1,9}", value) else otherwise


@dataclass
class Item:
    """A paragraph's place in a list: its id, and the level from 0 on."""

    is_item: bool = False
    of_list: str = ""
    level: int = 0


@dataclass
class Style:
    """A style. level: of a heading, or 0; traits: of its text, by their elements"""

    level: int = 0
    item: Item = field(default_factory=Item)
    traits: dict[str, str] = field(default_factory=dict)


def styles_of(archive: Archive, name: str) -> dict[str, Style]:
    """Return the styles of a document by their ids. name: of the part that has them, if there is one"""
    found: dict[str, Style] = {}
    style = Style()
    for tag, given in _elements_of(archive, name):
        if tag == "style":
            style = found.setdefault(given.get("styleId", ""), Style())
        elif tag == "name" and (heading := _HEADING.fullmatch(given.get("val", ""))):
            style.level = int(heading[1])
        elif tag == "numPr":
            style.item.is_item = True
        elif tag == "ilvl":
            style.item.level = whole(given)
        elif tag == "numId":
            style.item.of_list = given.get("val", "")
        elif tag in _TRAITS:
            style.traits[tag] = is_on(given)
    return found


@dataclass
class _Level:
    """A level of a list: its first number, the kind of its numbers, and the text around them, such as `%1.%2`."""

    start: int = 1
    kind: str = "1"
    text: str = ""


class Lists:
    """The lists of a document, and how far each is counted."""

    def __init__(self, archive: Archive, name: str) -> None:
        """name: of the part that says how lists are numbered, if there is one"""
        self._levels: dict[str, dict[int, _Level]] = defaultdict(dict)  # by abstract numbering
        self._shared: dict[str, str] = {}  # abstract numbering of each list
        self._starts: dict[tuple[str, int], int] = {}  # first numbers of a list's own, until they are used
        self._counts: dict[str, list[int]] = {}
        shared = of_list = ""
        level, at = _Level(), 0
        for tag, given in _elements_of(archive, name):
            if tag == "abstractNum":
                shared = given.get("abstractNumId", "")
            elif tag == "lvl":
                level = self._levels[shared].setdefault(_level_of(given), _Level())
            elif tag == "start":
                level.start = whole(given, 1)
            elif tag == "numFmt":
                kind = given.get("val", "")
                level.kind = kind if kind in (_BULLET, _NONE) else _KINDS.get(kind, "1")
            elif tag == "lvlText":
                level.text = given.get("val", "")
            elif tag == "num":
                of_list = given.get("numId", "")
            elif tag == "abstractNumId":
                self._shared[of_list] = given.get("val", "")
            elif tag == "lvlOverride":
                at = _level_of(given)
            elif tag == "startOverride":
                self._starts[of_list, at] = whole(given, 1)

    def mark(self, item: Item) -> str:
        """Return the mark of the next item of a list; "" = it has none."""
        if not item.is_item or item.of_list == "0":
            return ""
        at = min(item.level, LEVELS - 1)
        shared = self._shared.get(item.of_list, item.of_list)
        levels = self._levels.get(shared, {})
        level = levels.get(at, _Level(text=f"%{at + 1}."))
        if not item.of_list or level.kind == _BULLET:
            return "  " * at + "- "
        self._count(item.of_list, shared, at, level.start)
        counts = self._counts[shared]

        def shown(place: re.Match[str]) -> str:
            of_level = levels.get(int(place[1]) - 1, _Level())
            return number(counts[int(place[1]) - 1] or of_level.start, of_level.kind)

        text = "" if level.kind == _NONE else _PLACE.sub(shown, level.text).strip()
        return "  " * at + f"{text} " if text else ""

    def _count(self, of_list: str, shared: str, at: int, start: int) -> None:
        """Count an item; those below it begin anew."""
        counts = self._counts.setdefault(shared, [0] * LEVELS)
        own = self._starts.pop((of_list, at), None)
        counts[at] = own if own is not None else counts[at] + 1 if counts[at] else start
        counts[at + 1 :] = [0] * (LEVELS - at - 1)


def _level_of(given: Attributes) -> int:
    return min(whole({"val": given.get("ilvl", "")}), LEVELS - 1)


def _elements_of(archive: Archive, name: str) -> Iterator[tuple[str, Attributes]]:
    if name in archive:
        with archive.member(name) as stream:
            yield from elements(stream)
