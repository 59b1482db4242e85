"""XML read as a stream. Entities of its own are refused, so that a short file cannot stand for a long text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO
from xml.parsers import expat

from .report import DocumentError

PIECE_BYTES = 1 << 14

Attributes = Mapping[str, str]
Start = Callable[[str, Attributes], None]


def parse(file: BinaryIO, *, start: Start, end: Callable[[str], None], text: Callable[[str], None]) -> Iterator[None]:
    """Parse a stream, and call back with names of elements and attributes without their namespaces.

    Yields after each piece, so that the caller can pass on the text so far.
    """
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = lambda name, given: start(_local(name), {_local(it): given[it] for it in given})
    parser.EndElementHandler = lambda name: end(_local(name))
    parser.CharacterDataHandler = text
    parser.EntityDeclHandler = _refuse
    try:
        while piece := file.read(PIECE_BYTES):
            parser.Parse(piece, False)
            yield
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise DocumentError(f"has damaged XML in it ({error}); get it again, or save it anew") from None
    yield


def elements(file: BinaryIO) -> Iterator[tuple[str, Attributes]]:
    """Yield the elements of a stream in the order in which they begin."""
    found: list[tuple[str, Attributes]] = []
    for _ in parse(file, start=lambda *it: found.append(it), end=lambda _: None, text=lambda _: None):
        yield from found
        found.clear()


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def _refuse(name: str, *_: object) -> None:
    raise DocumentError(f"has XML that declares the entity {name!r}, which is refused; save it anew")
