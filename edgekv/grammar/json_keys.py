"""Keys of the JSON that a reply writes: none comes twice in an object, which no grammar can express."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .key_rule import KeyRule

Allowed = npt.NDArray[np.bool_]  # (n_vocab,), which tokens may come next

_QUOTE, _COMMA = b'",'
_BACKSLASH = ord("\\")


class _Open(NamedTuple):
    """An object or a list that is open. keys: an object's keys so far; outer: the object or list around it"""

    keys: frozenset[bytes] | None
    outer: _Open | None


class State(NamedTuple):
    """A place in a reply.

    within: the innermost object or list that is open
    awaits_key: the text that is open, or begins next, is a key
    text: the open text so far, if it is a key; None = no text is open
    escape: the bytes so far of an open escape in that text
    heard: the last characters outside of JSON; None = this is JSON
    """

    within: _Open | None = None
    awaits_key: bool = False
    text: bytes | None = None
    escape: bytes = b""
    heard: bytes | None = None

    @property
    def keys(self) -> frozenset[bytes]:
        """The keys that the innermost object has so far; none of a list."""
        return frozenset() if self.within is None else self.within.keys or frozenset()

    @property
    def may_repeat(self) -> bool:
        """True if the next key may become a key that its object has."""
        return self.awaits_key and any(key.startswith(self.text or b"") for key in self.keys)


class Grammar(Protocol):
    """A grammar in the midst of a reply."""

    def allowed(self) -> Allowed:
        """Return which tokens may come next."""

    def after(self, token: int) -> Grammar:
        """Return the grammar after another token."""


class Pieces:
    """The bytes of each token of a vocabulary, and what is in them.

    of: returns the bytes of a token; first: first byte of each; with_comma: tokens with a comma, and with_quotes: the
    number of quotes in each of these
    """

    def __init__(self, pieces: Sequence[bytes], of: Callable[[int], bytes]) -> None:
        self.of = of
        self.first = np.fromiter((piece[0] if piece else 0 for piece in pieces), np.uint8, len(pieces))
        with_comma = [token for token, piece in enumerate(pieces) if _COMMA in piece]
        self.with_comma = np.array(with_comma, np.intp)
        self.with_quotes = np.array([pieces[token].count(_QUOTE) for token in with_comma], np.intp)


class KeyWatch:
    """Follows a reply, and says which tokens would repeat a key."""

    def __init__(self, rule: KeyRule, pieces: Pieces) -> None:
        self._rule = rule
        self._pieces = pieces
        self._state = State() if rule.before is None else State(heard=b"")

    def accept(self, token: int) -> None:
        """Advance by a token, which does not repeat a key."""
        state = self._after(self._state, token)
        assert state is not None
        self._state = state

    def repeating(self, grammar: Grammar, allowed: Allowed) -> list[int]:
        """Return the tokens that repeat a key, or that allow only repeated keys.

        grammar: the reply's, at this place; allowed: the tokens that it allows
        """
        found = []
        for token in self._candidates(self._state, allowed):
            state = self._after(self._state, token)
            if state is None or not self._goes_on(grammar, token, state):
                found.append(token)
        return found

    def _candidates(self, state: State, allowed: Allowed) -> list[int]:
        """Return the allowed tokens that may end in a repeated key, or in the beginning of one.

        A comma comes before a key that can repeat another one, and then the two quotes of a whole key.
        """
        if state.may_repeat and (state.text is None or state.escape):
            return [*map(int, np.flatnonzero(allowed))]
        is_text = state.text is not None
        n_quotes = is_text + (0 if self._rule.by_pattern else 2)
        further = self._pieces.with_comma[self._pieces.with_quotes >= n_quotes]
        found = {*map(int, further[allowed[further]])}
        if state.may_repeat:
            found.update(map(int, np.flatnonzero(allowed & np.isin(self._pieces.first, [*self._next_bytes(state)]))))
        return [*found]

    def _next_bytes(self, state: State) -> set[int]:
        """Return the bytes that go on towards a repeated key."""
        begun = state.text or b""
        return {_BACKSLASH} | {(key + b'"')[len(begun)] for key in state.keys if key.startswith(begun)}

    def _goes_on(self, grammar: Grammar, token: int, state: State) -> bool:
        """Return True if a reply can go on after a token without repeating a key. state: after that token"""
        if not self._rule.by_pattern:
            return True  # a key that is any text can always become another one
        looked_at: set[bytes] = set()  # continuations after this place
        ahead = [(grammar, token, state, b"")]
        while ahead:
            grammar, token, state, before = ahead.pop()
            if not state.may_repeat:
                return True
            text = before + self._pieces.of(token)
            if text in looked_at:
                continue
            looked_at.add(text)
            grammar = grammar.after(token)
            for following in map(int, np.flatnonzero(grammar.allowed())):
                found = self._after(state, following)
                if found is not None:
                    ahead.append((grammar, following, found, text))
                    if not found.may_repeat:
                        break  # it is the next one to be looked at
        return False

    def _after(self, state: State, token: int) -> State | None:
        """Return the state after a token; None if it repeats a key."""
        piece = self._pieces.of(token)
        if state.text is not None and not state.escape and _QUOTE not in piece and _BACKSLASH not in piece:
            return state._replace(text=state.text + piece) if state.awaits_key else state
        for byte in piece:
            found = self._step(state, byte)
            if found is None:
                return None
            state = found
        return state

    def _step(self, state: State, byte: int) -> State | None:
        if state.heard is not None:
            return self._listened(state.heard, byte)
        if state.text is not None:
            return _in_text(state, state.text, byte)
        if byte == _QUOTE:
            return state._replace(text=b"")
        within = state.within
        if byte in b"{[":
            return State(_Open(frozenset() if byte == ord("{") else None, within), awaits_key=byte == ord("{"))
        if byte in b"}]" and within is not None:
            is_end = within.outer is None and self._rule.before is not None
            return State(heard=b"") if is_end else State(within.outer)
        if byte == _COMMA:
            return State(within, awaits_key=within is not None and within.keys is not None)
        return state

    def _listened(self, heard: bytes, byte: int) -> State:
        """Return the state after a byte outside of JSON."""
        before = self._rule.before
        assert before is not None
        heard = (heard + bytes([byte]))[-len(before) :]
        return State() if heard == before else State(heard=heard)


def _in_text(state: State, text: bytes, byte: int) -> State | None:
    """Return the state after a byte of a text, or after the quote that ends it; None if it ends a repeated key."""
    if state.escape or byte == _BACKSLASH:
        escape = state.escape + bytes([byte])
        if len(escape) < (6 if escape[1:2] == b"u" else 2):
            return state._replace(escape=escape)
        said = json.loads(b'"' + escape + b'"').encode(errors="surrogatepass")
        return state._replace(text=text + said if state.awaits_key else text, escape=b"")
    if byte != _QUOTE:
        return state._replace(text=text + bytes([byte])) if state.awaits_key else state
    if not state.awaits_key or state.within is None:
        return state._replace(text=None)
    return None if text in state.keys else State(state.within._replace(keys=state.keys | {text}))
