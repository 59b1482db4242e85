"""Readings of the last texts, kept for the next case of the same text."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from edgekv.evals.setting import OpenRuntime

T = TypeVar("T")

_READ: WeakKeyDictionary[OpenRuntime, dict[Hashable, Any]] = WeakKeyDictionary()


def of_text(runtimes: OpenRuntime, key: Hashable, read: Callable[[], T], *, keep: int = 1) -> T:
    """Return the result of `read` for a text; call it only if none of the last `keep` results has this key.

    The results live as long as the runtimes. They change no measurement, since each case would read the same itself.
    """
    texts = _READ.setdefault(runtimes, {})
    if key not in texts:
        while len(texts) >= keep:  # one goes before the next is made
            del texts[next(iter(texts))]
        texts[key] = read()
    made: T = texts[key]
    return made
