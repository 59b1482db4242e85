"""Bodies for clients: JSON, in which long lists are made while they are written, and server-sent events of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .reply_request import PromptProgress

PART_BYTES = 8 << 10  # bytes of a part, at least: smaller parts are joined
_MARK = secrets.token_hex(16)  # stands for items until they are written; nobody else knows it

PING = b": ping\n\n"  # a comment, which clients leave out
DONE = b"data: [DONE]\n\n"

Parts: TypeAlias = Iterable[bytes]


@dataclass(frozen=True, slots=True)
class LazyList:
    """A list whose items take more memory than their source. make: returns an iterator from the first item on"""

    make: Callable[[], Iterable[object]]

    def __iter__(self) -> Iterator[object]:
        return iter(self.make())


def json_parts(value: object, before: bytes = b"", after: bytes = b"") -> Iterator[bytes]:
    """Yield the JSON of a value, between two texts. A value without a `LazyList` comes in one part."""
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


def sse_event(value: object, event: str | None = None) -> Iterator[bytes]:
    """Return a server-sent event with a JSON value, and a name if the protocol has one."""
    named = b"" if event is None else b"event: " + event.encode() + b"\n"
    return json_parts(value, named + b"data: ", b"\n\n")


def progress_comment(reading: PromptProgress) -> bytes:
    """Return a comment of a stream: how much of the prompt has been read."""
    return f": reading {reading.seen} of {reading.total}\n\n".encode()


def _json(value: object, default: Callable[[LazyList], object] | None = None) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=default).encode()
