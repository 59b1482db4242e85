"""Measured memory of this process, and of a piece of work, equal in every run of a program."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol, TypeVar

from edgekv.binding.native_planner import counted_bytes, taken_bytes
from edgekv.memory import process


class Closable(Protocol):
    """An object with something to free."""

    def close(self) -> None:
        """Free it."""


Made = TypeVar("Made", bound=Closable)


def held_bytes() -> int:
    """Bytes that this process holds without its garbage, and without runtimes that were dropped."""
    gc.collect()
    process.return_freed_memory()
    return counted_bytes()


def measure(make: Callable[[], Made]) -> tuple[Made, int]:
    """Return what `make` makes, and the bytes that it takes. Raises what `make` raises."""
    made: list[Made] = []
    try:
        n_bytes = taken_bytes(lambda: made.append(make()))
    except BaseException:
        for thing in made:
            thing.close()
        raise
    return made[0], n_bytes
