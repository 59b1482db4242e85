"""Speculation by prompt lookup: proposes drafts from earlier tokens, and judges if decoding them pays."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgekv.errors import SessionFileError
from edgekv.store.log import TokenLog

SHORTEST = 2  # newest tokens that must stand before a draft
WINDOW = 1 << 14  # newest tokens that are always searched, and tokens of the log that are searched at a time
FIRST_COST = 1 / 6  # cost of a drafted token, in decodes without a draft, until it is measured
MEASURE_AGAIN = 256  # decodes without a draft, after which the cost of a draft is measured again
WEIGHT = 0.2  # weight of the newest figure in a running mean


class Speculation:
    """The drafts of a block loop: proposed by prompt lookup, decoded if that pays, and accepted token by token.

    n_most: the most tokens of a draft; 0 = none are made
    earlier: the tokens that drafts are looked up in
    draft: tokens that are decoded, but neither accepted nor dropped
    """

    def __init__(self, n_most: int) -> None:
        self.n_most = n_most
        self.earlier = NgramProposer()
        self.draft: list[int] = []
        self._gate = SpeculationGate()
        self._step = 0  # the step in which the draft was decoded

    def has_decoded(self, token: int, n_steps: int) -> bool:
        """Take the next token of a reply; returns True if it is the draft's first one, whose logits are still there.

        n_steps: steps so far, each of which overwrites the logits of the one before
        """
        self._gate.said(token)
        return self.draft[:1] == [token] and n_steps == self._step

    def propose(self, token: int, room: int, log: TokenLog | None = None) -> list[int]:
        """Return a draft of at most `room` tokens that may follow a token, if decoding it pays; [] = none does.

        log: holds all tokens before this one; None = only the newest are known
        """
        room = min(room, self.n_most)
        if room <= 0 or not self._gate.awaits_draft:
            return []
        draft = self.earlier.propose(token, room, log)
        return draft if self._gate.allows_draft(draft) else []

    def decoded(self, draft: list[int], seconds: float, n_steps: int) -> None:
        """Note a draft that was decoded with its token, and the time of that; [] = the token alone."""
        self.draft, self._step = draft, n_steps
        self._gate.decoded(len(draft), seconds)

    def drop(self) -> None:
        """Drop the draft, because other tokens come."""
        self.draft = []
        self._gate.forget()


class NgramProposer:
    """Proposes drafts by looking the newest tokens up in those that were read or generated.

    A draft is only a guess, so it may come from tokens that were evicted. The newest WINDOW tokens lie in memory, in
    128 KiB, and the older ones in a log on the disk. Every search takes the newest tokens, those about the last place
    in the log that a draft came from, and WINDOW other ones of the log: from its end to its beginning, and again.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(2 * WINDOW, dtype=np.int32)
        self._at = 0, 0  # tokens in the array, and the position after them; assigned together
        self._older_end = 0  # position after the older tokens that are searched next; 0 = the last ones
        self._found = 0  # position of the last draft from the log

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

    def cut(self, n_past: int) -> None:
        """Forget the tokens after the first n_past."""
        n, end = self._at
        if n_past < end:
            self._at = max(0, n - (end - n_past)), n_past

    def propose(self, token: int, most: int, log: TokenLog | None = None) -> list[int]:
        """Return a draft of at most `most` tokens, which followed an earlier place of `token`.

        It is the place before which the most tokens are the same as here, and the newest of several. A draft has as
        many tokens as are the same there, so drafts grow while a text is repeated, and are short again after a change.
        A place that overlaps what follows it goes on as it began. A log that cannot be read has no such place: a reply
        needs no draft.
        """
        searched = self.newest(WINDOW)
        newest = np.append(searched[-max(most, SHORTEST) + 1 :], np.int32(token))
        n_same, after = _longest_match(searched, newest)
        followed = np.append(searched[after : after + most], np.int32(token))
        if log is not None:
            with contextlib.suppress(SessionFileError):
                for first, stop in self._older(most, self._at[1] - len(searched)):
                    n_there, after = _longest_match(log.read(first, stop + len(newest)), newest)
                    if n_there > max(n_same, SHORTEST - 1):
                        older = log.read(first + after, first + after + most)
                        n_same, self._found, followed = n_there, first + after, older
        n = min(n_same, most) if n_same >= SHORTEST else 0
        drafted: list[int] = np.resize(followed, n).tolist()
        return drafted

    def _older(self, most: int, n: int) -> tuple[tuple[int, int], ...]:
        """Choose which of the first n tokens are searched this time. Returns the begin and end of each range."""
        if n <= 0:
            return ()
        end = min(self._older_end or n, n)
        self._older_end = max(0, end - WINDOW)
        return (max(0, self._found - most), self._found + 3 * most), (self._older_end, end)

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


def _longest_match(searched: npt.NDArray[np.int32], newest: npt.NDArray[np.int32]) -> tuple[int, int]:
    """Find the place in `searched` (n,) before which the most tokens are the newest (k,); the newest of several.

    Returns how many tokens are the same, at most k, and the index after them; 0 and 0 if the last token is not there.
    """
    places = np.flatnonzero(searched == newest[-1])
    n_same = min(1, len(places))
    while n_same < len(newest):
        longer = places[places >= n_same]
        longer = longer[searched[longer - n_same] == newest[-1 - n_same]]
        if len(longer) == 0:
            break
        places, n_same = longer, n_same + 1
    return n_same, int(places[-1]) + 1 if n_same else 0


class SpeculationGate:
    """Judges if drafts pay: if the share of drafted tokens that are said is larger than what one of them costs.

    Each draft is compared with the tokens that are generated, whether it was decoded or not. So the share that would be
    accepted is known without a decode. The cost of a drafted token, in decodes without a draft, is known from earlier
    decodes.
    """

    def __init__(self) -> None:
        self._draft: list[int] = []  # tokens that are still to be compared
        self._n_draft = 0  # tokens of this draft
        self._share = 0.0  # running mean of the share that is said, so that the first drafts are seldom decoded
        self._plain_s = 0.0  # running mean of a decode without a draft
        self._token_s: float | None = None  # running mean of what a drafted token adds; None = not known, or too old
        self._n_plain = 0  # decodes since the last one with a draft

    @property
    def awaits_draft(self) -> bool:
        """True if no draft is being compared."""
        return not self._draft

    def allows_draft(self, draft: Sequence[int]) -> bool:
        """Compare this draft with the next tokens. Returns True if decoding it pays."""
        self._draft, self._n_draft = list(draft), len(draft)
        return bool(draft) and self._share * self._plain_s > self._added_s

    def said(self, token: int) -> None:
        """Note the next token that is generated."""
        if not self._draft:
            return
        n_left = len(self._draft)
        if self._draft[0] == token:
            del self._draft[0]
            if self._draft:
                return
            n_left = 0
        self._share = _mean(self._share, 1 - n_left / self._n_draft)
        self._draft = []

    def forget(self) -> None:
        """Stop comparing a draft, because it was made for other tokens."""
        self._draft = []

    def decoded(self, n_draft: int, seconds: float) -> None:
        """Note the time of a decode."""
        if n_draft:
            most_s = 2 * (self._plain_s + n_draft * self._added_s)
            added_s = (min(seconds, most_s) - self._plain_s) / n_draft
            self._token_s = added_s if self._token_s is None else _mean(self._token_s, added_s)
            self._n_plain = 0
            return
        self._plain_s = _mean(self._plain_s, seconds) if self._plain_s else seconds
        self._n_plain += 1
        if self._n_plain >= MEASURE_AGAIN:
            self._token_s = None

    @property
    def _added_s(self) -> float:
        """Seconds that a drafted token adds to a decode, as far as is known."""
        return FIRST_COST * self._plain_s if self._token_s is None else self._token_s


def _mean(mean: float, newest: float) -> float:
    return mean + WEIGHT * (newest - mean)
