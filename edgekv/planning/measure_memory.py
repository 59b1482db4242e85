"""Measured memory of this process, and of a piece of work, equal in every run of a program."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Protocol, TypeVar

from edgekv.binding import library, structs
from edgekv.binding.callback import Callback
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


def counted_bytes() -> int:
    """Return the bytes of this process that a plan counts: resident ones; small files of code and edgekv's in full.

    Raises UnsupportedModelError if the system does not say.
    """
    n_bytes = ctypes.c_uint64()
    library.call("edgekv_process_bytes", ctypes.byref(n_bytes))
    return n_bytes.value


def taken_bytes(work: Callable[[], object]) -> int:
    """Return the bytes that a plan counts after some work and not before it. Raises what `work` raises."""

    def answer(_user_data: int | None) -> int:
        work()
        return 0

    n_bytes, callback = ctypes.c_uint64(), Callback(structs.Work, answer, failed=1)
    with callback:
        library.call("edgekv_process_taken", callback.native, None, ctypes.byref(n_bytes))
    return n_bytes.value
