"""Pieces of a reply as clients get them: reasoning apart from the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgekv.generation.reasoning import ReasoningSplitter

from .request import Piece


class PieceSplitter:
    """Splits a reply that comes in pieces into reasoning and answer.

    White space around reasoning, and before the answer that follows it, belongs to neither.

    n_thoughts: pieces of reasoning so far
    """

    def __init__(self, *, begun: bool | None = False) -> None:
        """begun: the chat template has opened the tag, so the reply begins with reasoning; None = all is answer"""
        self.n_thoughts = 0
        self._split = None if begun is None else ReasoningSplitter(begun=begun)
        self._newest: bool | None = None  # True = the newest part is reasoning
        self._begins = False  # True = the part has no text yet, and drops white space
        self._blanks = ""  # white space after the reasoning so far

    def events(self, pieces: Iterable[str]) -> Iterator[Piece]:
        """Yield the pieces of a reply. Log probabilities of text that is held back come with the next text."""
        tokens = b""
        for piece in pieces:
            tokens += getattr(piece, "packed", b"")
            for is_thought, text in self.push(piece):
                yield Piece(text, is_thought, tokens)
                tokens = b""
        for is_thought, text in self.rest():
            yield Piece(text, is_thought, tokens)
            tokens = b""
        if tokens:
            yield Piece("", logprobs=tokens)

    def push(self, piece: str) -> list[tuple[bool, str]]:
        """Take the next piece; return the texts that are decided, each with True for reasoning."""
        if self._split is None:
            return [(False, piece)] if piece else []
        self.n_thoughts += bool(self._split.in_reasoning)
        return list(self._trimmed(self._split.add(piece)))

    def rest(self) -> list[tuple[bool, str]]:
        """Return the texts that were still held back when the reply ended."""
        return [] if self._split is None else list(self._trimmed(self._split.end()))

    def _trimmed(self, parts: Iterable[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
        for is_thought, text in parts:
            if is_thought != self._newest:
                self._newest, self._blanks = is_thought, ""
                self._begins = self._split is not None and self._split.has_reasoning
            text = self._blanks + text
            if self._begins:
                text = text.lstrip()
            shown = text.rstrip() if is_thought else text
            self._blanks = text[len(shown) :]
            if shown:
                self._begins = False
                yield is_thought, shown
