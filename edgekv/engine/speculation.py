"""Drafts: what may be said next, looked up in what was read and said, and whether decoding it pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NGRAM = 3  # newest tokens that must have stood before what is drafted
WINDOW = 1 << 14  # newest tokens that are searched
FIRST_TRIALS = 3  # drafts after which is judged whether they pay
BACKOFF, LONGEST_BACKOFF = 32, 1024  # decodes until drafts that do not pay are tried again, twice as many each time
WEIGHT = 0.2  # of the newest figure in a running mean


class NgramProposer:
    """The newest WINDOW tokens that were read and said, whether cells still hold them or not, in 128 KiB.

    A draft is only a guess, so it need not come from what the model still sees.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(2 * WINDOW, dtype=np.int32)
        self._at = 0, 0  # tokens in the array, and the position after them; set at once

    def add(self, tokens: Sequence[int]) -> None:
        """Note tokens that were read or said."""
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
        """Note tokens after which a session has read and said n_past; not again those that were noted already."""
        n_new = n_past - self._at[1]
        if n_new > 0:
            self.add(tokens[-n_new:])

    def propose(self, token: int, most: int) -> list[int]:
        """At most `most` tokens: what came after the newest NGRAM when they stood here last. `token` comes next now."""
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
        """The newest n tokens, or as many as there are."""
        end = self._at[0]
        return self._tokens[max(0, end - n) : end]

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens that are searched."""
        return self.newest(WINDOW).nbytes

    def to_bytes(self) -> bytes:
        """The tokens that are searched."""
        return self.newest(WINDOW).tobytes()

    def restore(self, tokens: bytes, n_past: int = 0) -> None:
        """Search these from now on; b"" = none. n_past: the position after them"""
        kept = np.frombuffer(tokens, dtype=np.int32)
        self._tokens[: len(kept)] = kept
        self._at = len(kept), n_past


class SpeculationGate:
    """Judges whether drafts pay.

    A decode with a draft says 1 token and those that are accepted. It pays while decodes without one would take longer
    to say as many. Once drafts do not pay, they rest.
    """

    def __init__(self) -> None:
        self._plain_s: float | None = None  # of a decode without a draft; running means
        self._draft_s = 0.0  # of one with a draft
        self._said = 0.0  # tokens that such a one says
        self._accepted: int | None = None  # of the last decode's draft; None = it had none
        self._n_drafts = 0
        self._backoff = BACKOFF
        self._backoff_left = 0

    def allows_draft(self) -> bool:
        """Whether the next decode may have a draft. Call it once before each."""
        self._judge()
        if self._backoff_left > 0:
            self._backoff_left -= 1
            return False
        return self._plain_s is not None

    def decoded(self, n_draft: int, seconds: float) -> None:
        """Note how long a decode took."""
        if n_draft == 0:
            self._plain_s = seconds if self._plain_s is None else _mean(self._plain_s, seconds)
            return
        self._accepted = 0
        self._draft_s = _mean(self._draft_s, seconds) if self._n_drafts else seconds

    def accepted(self) -> None:
        """Note that a drafted token was said."""
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
