"""Detect a reply that repeats itself, token by token, with loops of any length."""

from __future__ import annotations

from array import array
from zlib import crc32

ROUNDS = 3
SHORTEST_LOOP = 60  # tokens in all: "ha ha ha" and a row of dots are no loop yet
GRAM = 8  # tokens that have to stand somewhere before, so that a distance is looked at
BUCKETS = 4096  # last places of grams; a later gram may take a place, and then the next gram is tried
MOST_DISTANCES = 32
REMEMBERED = 1 << 16  # tokens; so a loop of at most a third of them is found

NEAR_ROUNDS = 5  # repeats of the first round
NEAR_SHORTEST = 240  # tokens of these repeats
NEAR_NEW = 64  # tokens for each that may be new
NEAR_GAP = 8  # new tokens in a row


class LoopDetector:
    """Detects that a reply loops.

    A reply loops when its last tokens are one sequence, ROUNDS times in a row or more, and these are at least
    SHORTEST_LOOP tokens together. It loops as well when rounds differ in a word or so: its last NEAR_SHORTEST tokens or
    more repeat, NEAR_ROUNDS times or more, what stood before, and at most one of NEAR_NEW is new.

    A token costs one hash of GRAM tokens, and one comparison for each distance at which the newest GRAM tokens or more
    are repeated, mostly none and at most MOST_DISTANCES. Memory: 4 bytes a token, at most 256 KiB, and 32 KiB.
    """

    def __init__(self) -> None:
        self._tokens = array("i")
        self._first = 0  # position of the first token that is remembered
        self._last_seen = array("q", [-1]) * BUCKETS  # position after the gram, by its hash
        self._runs: dict[int, int] = {}  # by distance, the newest tokens in a row that equal those so far before
        self._near = _NearLoop()

    def loops_after(self, token: int) -> bool:
        """Return True if the reply loops with `token` as its next token."""
        tokens = self._tokens
        tokens.append(token)
        self._runs = {distance: run + 1 for distance, run in self._runs.items() if tokens[-1 - distance] == token}
        n = self._first + len(tokens)
        is_near = False
        if len(tokens) >= GRAM:
            gram = tokens[-GRAM:]
            bucket = crc32(gram.tobytes()) % BUCKETS  # hash() of bytes differs from process to process
            distance = n - self._last_seen[bucket]
            self._last_seen[bucket] = n
            if distance + GRAM <= len(tokens) and tokens[-GRAM - distance : -distance] == gram:
                self._add(distance)
                is_near = self._near.loops_after(n, distance)
        if len(tokens) == REMEMBERED:
            self._forget()
        return is_near or any(
            run + distance >= max(ROUNDS * distance, SHORTEST_LOOP) for distance, run in self._runs.items()
        )

    def _add(self, distance: int) -> None:
        """Begin to follow a distance at which the newest tokens are repeated."""
        if distance in self._runs:
            return
        tokens, run = self._tokens, GRAM
        while run + distance < len(tokens) and tokens[-1 - run] == tokens[-1 - run - distance]:
            run += 1
        if len(self._runs) == MOST_DISTANCES:
            del self._runs[min(self._runs, key=self._runs.__getitem__)]
        self._runs[distance] = run

    def _forget(self) -> None:
        """Forget the older half of the tokens, and distances that reach there."""
        half = REMEMBERED // 2
        del self._tokens[:half]
        self._first += half
        self._runs = {distance: run for distance, run in self._runs.items() if distance < half}


class _NearLoop:
    """Follows the newest tokens as long as nearly all of them are parts of grams that stood before."""

    def __init__(self) -> None:
        self._begin = 0  # position of the first of them
        self._end = 0  # position after the newest gram that stood before
        self._n_new = 0  # tokens that are in no such gram
        self._n_grams = 0  # grams that stood before
        self._distances = 0  # sum of the distances to their last places

    def loops_after(self, n: int, distance: int) -> bool:
        """Take a gram that ends after n tokens and stood `distance` tokens before; returns True in a loop."""
        n_new = max(0, n - GRAM - self._end)
        if n_new > NEAR_GAP or (self._n_new + n_new) * NEAR_NEW > n - self._begin + NEAR_SHORTEST:
            self._begin, self._n_new, self._n_grams, self._distances, n_new = n - GRAM, 0, 0, 0, 0
        self._end = n
        self._n_new += n_new
        self._n_grams += 1
        self._distances += distance
        length = n - self._begin
        is_long = length >= NEAR_SHORTEST and length * self._n_grams >= NEAR_ROUNDS * self._distances
        return is_long and self._n_new * NEAR_NEW <= length
