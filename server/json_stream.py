"""JSON for clients: without blanks, and what is long in it made while it is written."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

PART_BYTES = 8 << 10  # of what is long, at least: smaller parts are joined
_MARK = secrets.token_hex(16)  # stands for items until they are written; nobody else knows it

Parts: TypeAlias = Iterable[bytes]


@dataclass(frozen=True, slots=True)
class LazyList:
    """A list in a value whose items take more memory than what they are made of. make: begins with the first again"""

    make: Callable[[], Iterable[object]]

    def __iter__(self) -> Iterator[object]:
        return iter(self.make())


def json_parts(value: object, before: bytes = b"", after: bytes = b"") -> Iterator[bytes]:
    """JSON of a value that may have `LazyList`, with what stands around it. Without them it comes in one part."""
    found: list[LazyList] = []

    def marked(items: LazyList) -> str:
        found.append(items)
        return _MARK

    first, *others = _json(value, marked).split(f'"{_MARK}"'.encode())
    part = bytearray(before + first)
    for items, rest in zip(found, others, strict=True):
        part += b"["
        for i, item in enumerate(items):
            part += (b"," if i else b"") + _json(item)
            if len(part) >= PART_BYTES:
                yield bytes(part)
                part.clear()
        part += b"]" + rest
    yield bytes(part + after)


def _json(value: object, default: Callable[[LazyList], object] | None = None) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=default).encode()
