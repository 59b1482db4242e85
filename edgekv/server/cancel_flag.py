"""A flag that ends a reply early, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CancelFlag:
    """A flag that ends a reply early; any thread may set it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._call: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Set the flag, and call the function that is registered."""
        with self._lock:
            self._is_set = True
            if self._call is not None:
                self._call()

    @contextmanager
    def calls(self, call: Callable[[], None]) -> Iterator[None]:
        """Register a function for the length of the block. Setting the flag calls it."""
        with self._lock:
            self._call = call
        try:
            yield
        finally:
            with self._lock:
                self._call = None
