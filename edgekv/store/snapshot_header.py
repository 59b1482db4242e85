"""The values in the header of a snapshot file, each checked when it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgekv.errors import SessionFileError

MAX_TOKEN = (1 << 31) - 1


class SnapshotHeader:
    """Plain values by name. damaged: returns the error of a file with an impossible value"""

    def __init__(self, damaged: Callable[[str], SessionFileError], values: Mapping[str, Any]) -> None:
        self.values = values
        self.damaged = damaged

    def value(self, name: str, sound: Callable[[Any], bool]) -> Any:
        """Return a value. Raises SessionFileError unless sound(value) is true."""
        if name not in self.values or not sound(self.values[name]):
            raise self.damaged(f"its {name!r} is impossible")
        return self.values[name]

    def inner(self, name: str) -> SnapshotHeader | None:
        """Return the header within a value, or None."""
        values = self.value(name, lambda it: it is None or isinstance(it, dict))
        return None if values is None else SnapshotHeader(self.damaged, values)

    def required(self, name: str) -> SnapshotHeader:
        """Return the header within a value. Raises SessionFileError without one."""
        return SnapshotHeader(self.damaged, self.value(name, lambda it: isinstance(it, dict)))


def is_whole(value: object, most: int) -> bool:
    """Return True for a whole number in [0, most]."""
    return type(value) is int and 0 <= value <= most


def are_tokens(value: object) -> bool:
    """Return True for a list of token ids."""
    return isinstance(value, list) and all(is_whole(token, MAX_TOKEN) for token in value)
