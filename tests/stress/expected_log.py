"""A model in plain Python of what the log of a session must be: no code of the library has a part in it.

Where a text is parted into tokens is taken from the log once, and must not change later.
"""

from __future__ import annotations

import codecs
import copy
import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

# parts of the tiny models' chat template, and what comes between two texts of a turn
FIRST = "<|im_start|>user\n"
AFTER_USER = "<|im_end|>\n<|im_start|>assistant\n"
BETWEEN = "<|im_end|>\n" + FIRST
PARAGRAPH = "\n\n"


class Piece(Protocol):
    """Returns the bytes of a token. special: with the names of control tokens"""

    def __call__(self, token: int, *, special: bool) -> bytes: ...


class Said(NamedTuple):
    """All that a reply has given its client.

    text: all pieces; most_tokens: that were asked for
    may_lack: the prompt may have been left before its end
    """

    text: str
    most_tokens: int
    may_lack: bool


class ExpectedLog:
    """The tokens that a session has read and said, and where its turns stand after each of them.

    tokens: ids, with the last one of a reply, which was not fed yet
    states: after 0, 1, ... tokens: "new", "opening", "open", "user" or "assistant"
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.states = ["new"]
        self._pending: dict[int, list[int]] = {}  # what was not fed when a turn ended, by n_past

    def copy(self) -> ExpectedLog:
        """Return a log of its own, which is the same."""
        return copy.deepcopy(self)

    def check(self, tokens: Sequence[int], n_past: int) -> None:
        """Raise AssertionError unless these are the tokens. n_past: those that were fed"""
        assert list(tokens) == self.tokens, f"the log has {list(tokens)}, not {self.tokens}"
        assert 0 <= len(tokens) - n_past <= 1, f"{n_past} of {len(tokens)} tokens were fed"

    def note_end(self, n_past: int) -> None:
        """Note that a turn ended when so many tokens were fed: the session may be rewound to that."""
        self._pending[n_past] = self.tokens[n_past:]

    def rewind(self, n: int, tokens: Sequence[int]) -> None:
        """Go back to n fed tokens, and say which ones are there now. Raises AssertionError.

        The token after them comes back if a turn ended there.
        """
        held = self.tokens[:n]
        both = held, held + self._pending.get(n, [])
        assert list(tokens) in both, f"{list(tokens)} after a rewind of {self.tokens} to {n}"
        self._cut(n)
        self.tokens += tokens[n:]
        self.states += ["assistant"] * len(tokens[n:])

    def read(self, text: str, tokens: Sequence[int], piece: Piece, said: Said | None = None) -> int:
        """Read a text, in a turn with a reply if there is something `said`; returns how many tokens were said.

        tokens: all that are in the log now. Raises AssertionError if they are others
        """
        if said is not None and said.may_lack and list(tokens) == self.tokens:
            return 0
        if self.states[-1] == "opening":
            self._cut(0)
        n, state = len(self.tokens), self.states[-1]
        assert list(tokens[:n]) == self.tokens, f"{list(tokens)} does not go on after {self.tokens}"
        beginning = {"new": FIRST, "open": PARAGRAPH, "assistant": BETWEEN, "user": AFTER_USER + BETWEEN}[state]
        prompt = (beginning + text + ("" if said is None else AFTER_USER)).encode()
        pieces = [piece(token, special=True) for token in tokens[n:]]
        ends = list(itertools.accumulate(map(len, pieces)))
        new = b"".join(pieces)
        is_cut = len(new) < len(prompt)
        assert new.startswith(prompt) or (said is not None and said.may_lack and prompt.startswith(new)), (
            f"{new!r} was read, not {prompt!r}"
        )
        assert is_cut or len(prompt) in ends, f"no token of {pieces} ends with the prompt"
        within = "open" if said is None else "user"
        after = "open" if said is None else "assistant"
        for end in ends:
            is_opening = state == "new" and end <= len(beginning)
            self.states.append("opening" if is_opening else after if end >= len(prompt) else within)
        self.tokens = list(tokens)
        n_said = 0
        if said is not None:
            reply = [token for token, end in zip(tokens[n:], ends, strict=True) if end > len(prompt)]
            assert len(reply) <= said.most_tokens, f"{len(reply)} tokens were said, not {said.most_tokens}"
            told = b"".join(piece(token, special=False) for token in reply)
            assert said.text in decoded(told), f"{said.text!r} was told, not {told!r}"
            n_said = len(reply)
        return n_said

    def _cut(self, n: int) -> None:
        self.tokens, self.states = self.tokens[:n], self.states[: n + 1]
        self._pending = {at: tokens for at, tokens in self._pending.items() if at <= n}


def decoded(data: bytes) -> tuple[str, str]:
    """Return a text without an incomplete character at its end, and with what stands for that."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, text + decoder.decode(b"", final=True)
