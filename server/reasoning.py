"""The pieces of a reply as clients get them: what is thought apart from what is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgekv.engine.thoughts import Thoughts

from .request import Piece


class Reasoning:
    """Tells thoughts apart in a reply that comes in pieces.

    White space around thoughts, and before the answer that follows them, belongs to neither.

    n_pieces: those that were thought so far
    """

    def __init__(self, *, begun: bool | None = False) -> None:
        """begun: the chat template has opened the tag, so the reply begins with thoughts; None = all of it is said"""
        self.n_pieces = 0
        self._split = None if begun is None else Thoughts(begun=begun)
        self._newest: bool | None = None  # whether the newest part is thought
        self._begins = False  # it has no text yet, and drops white space
        self._blanks = ""  # after what was thought so far

    def told_apart(self, pieces: Iterable[str]) -> Iterator[Piece]:
        """The pieces of a reply. Log probabilities of text that is held back come with the text after it."""
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
        """Take the next piece; texts that certainly belong somewhere, each with whether it is thought and not said."""
        if self._split is None:
            return [(False, piece)] if piece else []
        self.n_pieces += bool(self._split.thinks)
        return list(self._trimmed(self._split.add(piece)))

    def rest(self) -> list[tuple[bool, str]]:
        """What was still held back when the reply has ended."""
        return [] if self._split is None else list(self._trimmed(self._split.end()))

    def _trimmed(self, parts: Iterable[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
        for is_thought, text in parts:
            if is_thought != self._newest:
                self._newest, self._blanks = is_thought, ""
                self._begins = self._split is not None and self._split.has_thoughts
            text = self._blanks + text
            if self._begins:
                text = text.lstrip()
            shown = text.rstrip() if is_thought else text
            self._blanks = text[len(shown) :]
            if shown:
                self._begins = False
                yield is_thought, shown
