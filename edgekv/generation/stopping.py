"""Ends a reply before a stop text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from edgekv.errors import EdgeKVError

from .stats import Stats


class StopTexts:
    """Cuts a text that comes in pieces before its first complete stop text, which is then in `found`."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = ""
        self._stops = stops
        self._held = ""  # a possible beginning of a stop text

    def push(self, piece: str) -> str:
        """Take the next piece; returns text that precedes any stop text. The text is over once one is `found`."""
        text = self._held + piece
        # The first complete stop text counts, and the longest of those that end together, however the text was cut.
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            _, start, self.found = min(ends)
            self._held = ""
            return text[:start]
        n_held = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def rest(self) -> str:
        """Return the text that is still held back. Call it after the last piece."""
        held, self._held = self._held, ""
        return held


def until_stop(pieces: Iterable[str], text: StopTexts, stats: Stats) -> Iterator[str]:
    """Yield the pieces of a reply up to a stop text. A possible beginning of a stop text is held back."""
    try:
        for piece in pieces:
            yield text.push(piece)
            if text.found:
                stats.finish_reason, stats.stop_text = "stop", text.found
                return
    except EdgeKVError:  # the session holds this text
        yield text.rest()
        raise
    yield text.rest()


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that `stop` begins with; less than all of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
