"""Yielding: a ceiling goes down by itself while the system is short of memory, and comes back slowly."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .pressure import Source

STEPS = 4  # steps of the way back; the way down is one
CALM_LOOKS = 15  # looks in a row without pressure before each step back
LOOK_S = 1.0  # seconds between two looks


class Yielding:
    """Decides the share of a ceiling that is given up, look by look. share: the most, 0 to 1"""

    def __init__(self, share: float) -> None:
        self._share = share
        self._n_given = 0  # steps
        self._n_calm = 0  # looks without pressure since the last step, or the last look with it

    def look(self, *, is_short: bool) -> bool:
        """Take the result of a look; returns True if the ceiling moves."""
        before = self._n_given
        self._n_calm = 0 if is_short else self._n_calm + 1
        if is_short:
            self._n_given = STEPS
        elif self._n_given and self._n_calm == CALM_LOOKS:
            self._n_given, self._n_calm = self._n_given - 1, 0
        return self._n_given != before

    def begin(self) -> None:
        """Begin again with a whole ceiling."""
        self._n_given = self._n_calm = 0

    def ceiling(self, whole_bytes: int) -> int:
        """Return what is left of a ceiling."""
        return whole_bytes - int(whole_bytes * self._share * self._n_given / STEPS)


class Watch:
    """A thread that looks at the pressure every LOOK_S, and tells it.

    found: returns the function to tell; None = it is gone, and the watch ends
    """

    def __init__(self, found: Callable[[], Callable[[bool], None] | None], is_short: Source) -> None:
        self._found = found
        self._is_short = is_short
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edgekv-pressure", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            is_short = self._is_short()
            tell = self._found()
            if tell is None:
                return
            tell(is_short)
            del tell  # keeps nothing alive while it waits

    def close(self) -> None:
        """End the watch, without waiting for a look under way."""
        self._over.set()
