"""Speculation by prompt lookup: proposes drafts from earlier tokens, and judges if decoding them pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NGRAM = 3  # newest tokens that must stand before a draft
WINDOW = 1 << 14  # newest tokens that are searched
FIRST_TRIALS = 3  # drafts before the first judgement
BACKOFF, LONGEST_BACKOFF = 32, 1024  # decodes until drafts are tried again, doubled each time that they do not pay
WEIGHT = 0.2  # weight of the newest figure in a running mean


class NgramProposer:
    """Proposes drafts by looking the newest n-gram up in the newest WINDOW tokens, which take 128 KiB.

    A draft is only a guess, so it may come from tokens that were evicted.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(2 * WINDOW, dtype=np.int32)
        self._at = 0, 0  # tokens in the array, and the position after them; assigned together

    def add(self, tokens: Sequence[int]) -> None:
        """Note tokens that were read or generated."""
        newest = tokens[-WINDOW:]
        n, end = self._at
        if n + len(newest) > len(self._tokens):
            keep = WINDOW - len(newest)
            self._tokens[:keep] = self._tokens[n - keep : n]
            n = keep
            self._at = n, end
        self._tokens[n : n + len(newest)] = newest
        self._at = n + len(newest), end + len(tokens)

    def follow(self, tokens: Sequence[int], n_past: int) -> None:
        """Note fed tokens; tokens that were noted before are left out. n_past: tokens fed so far"""
        n_new = n_past - self._at[1]
        if n_new > 0:
            self.add(tokens[-n_new:])

    def propose(self, token: int, most: int) -> list[int]:
        """Return a draft: at most `most` tokens that followed the n-gram ending with `token` at its last place."""
        before = NGRAM - 1
        searched = self.newest(WINDOW)
        n_places = len(searched) - before
        if n_places <= 0:
            return []
        found = searched[before:] == token
        for i, earlier in enumerate(searched[-before:]):
            found &= searched[i : i + n_places] == earlier
        places = np.flatnonzero(found)
        if not len(places):
            return []
        after = int(places[-1]) + NGRAM
        drafted: list[int] = searched[after : after + most].tolist()
        return drafted

    def newest(self, n: int) -> npt.NDArray[np.int32]:
        """Return the newest n tokens, or all of them."""
        end = self._at[0]
        return self._tokens[max(0, end - n) : end]

    @property
    def nbytes(self) -> int:
        """Bytes of the searched tokens."""
        return self.newest(WINDOW).nbytes

    def to_bytes(self) -> bytes:
        """Return the searched tokens."""
        return self.newest(WINDOW).tobytes()

    def restore(self, tokens: bytes, n_past: int = 0) -> None:
        """Search these tokens from now on; b"" = none. n_past: the position after them"""
        kept = np.frombuffer(tokens, dtype=np.int32)
        self._tokens[: len(kept)] = kept
        self._at = len(kept), n_past


class SpeculationGate:
    """Judges if drafts pay.

    A decode with a draft yields one token and the accepted ones. It pays while decodes without a draft would take
    longer for as many tokens. If drafts do not pay, the gate backs off.
    """

    def __init__(self) -> None:
        self._plain_s: float | None = None  # running mean of a decode without a draft
        self._draft_s = 0.0  # running mean of a decode with a draft
        self._said = 0.0  # running mean of tokens from a decode with a draft
        self._accepted: int | None = None  # accepted tokens of the last draft; None = no draft
        self._n_drafts = 0
        self._backoff = BACKOFF
        self._backoff_left = 0

    def allows_draft(self) -> bool:
        """Return True if the next decode may have a draft. Call it once before each decode."""
        self._judge()
        if self._backoff_left > 0:
            self._backoff_left -= 1
            return False
        return self._plain_s is not None

    def decoded(self, n_draft: int, seconds: float) -> None:
        """Note the time of a decode."""
        if n_draft == 0:
            self._plain_s = seconds if self._plain_s is None else _mean(self._plain_s, seconds)
            return
        self._accepted = 0
        self._draft_s = _mean(self._draft_s, seconds) if self._n_drafts else seconds

    def accepted(self) -> None:
        """Note that a drafted token was accepted."""
        self._accepted = (self._accepted or 0) + 1

    def _judge(self) -> None:
        if self._accepted is None:
            return
        said, self._accepted = 1.0 + self._accepted, None
        self._said = _mean(self._said, said) if self._n_drafts else said
        self._n_drafts += 1
        if self._n_drafts < FIRST_TRIALS or self._plain_s is None:
            return
        if self._said * self._plain_s < self._draft_s:
            self._backoff_left = self._backoff
            self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)
        else:
            self._backoff = BACKOFF


def _mean(mean: float, newest: float) -> float:
    return mean + WEIGHT * (newest - mean)
