"""Stopping a reply before the model ends it: stop texts and loops."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from edgekv.errors import CeilingExceededError

from .stats import Stats

LONGEST_CYCLE = 60  # tokens
ROUNDS = 3
SHORTEST_LOOP = 60  # tokens in all: "ha ha ha" and a row of dots are no loop yet


class LoopDetector:
    """Detects that a reply loops.

    A reply loops when its last tokens are one sequence of at most LONGEST_CYCLE tokens, ROUNDS times in a row or more,
    and these are at least SHORTEST_LOOP tokens together.
    """

    def __init__(self) -> None:
        self._newest: deque[int] = deque(maxlen=LONGEST_CYCLE)  # the last one first
        self._runs = [0] * LONGEST_CYCLE  # _runs[d - 1]: newest tokens in a row that equal those d places earlier

    def loops_after(self, token: int) -> bool:
        """Return True if the reply loops with `token` as its next token."""
        self._runs = [
            run + 1 if token == earlier else 0 for run, earlier in zip(self._runs, self._newest, strict=False)
        ] + [0] * (LONGEST_CYCLE - len(self._newest))
        self._newest.appendleft(token)
        return any(
            run + length >= max(ROUNDS * length, SHORTEST_LOOP) for length, run in enumerate(self._runs, start=1)
        )


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


def until_stop(pieces: Iterable[str], stops: Sequence[str], stats: Stats) -> Iterator[str]:
    """Yield the pieces of a reply up to a stop text. A possible beginning of a stop text is held back."""
    text = StopTexts(stops)
    try:
        for piece in pieces:
            yield text.push(piece)
            if text.found:
                stats.finish_reason, stats.stop_text = "stop", text.found
                return
    except CeilingExceededError:
        yield text.rest()
        raise
    yield text.rest()


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that `stop` begins with; less than all of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
