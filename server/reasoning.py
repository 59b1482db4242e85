"""Tells what a model thinks from what it answers, while its text comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from edgekv.engine.endings import overlap

from .job import Piece

OPENED, CLOSED = "<think>", "</think>"


class Thoughts:
    """Splits a reply that may begin with a part in <think> tags. Tags may be cut anywhere between two pieces.

    A tag opens thoughts only where a reply begins: what comes later is text that speaks of a tag. White space around
    thoughts, and before the answer that follows them, belongs to neither.

    n_pieces: those that were thought so far
    """

    def __init__(self, *, begun: bool | None = False) -> None:
        """begun: the chat template has opened the tag, so the reply begins with thoughts; None = all of it is said"""
        self.n_pieces = 0
        self._held = ""  # may belong to a tag, or to the white space around thoughts
        self._split = {None: self._answer, False: self._beginning, True: self._thoughts}[begun]
        self._begins = bool(begun)  # white space is dropped where thoughts, or the answer after them, begin

    def told_apart(self, pieces: Iterable[str]) -> Iterator[Piece]:
        """The pieces of a reply. Log probabilities of text that is held back come with the text after it."""
        tokens: tuple[Any, ...] = ()
        for piece in pieces:
            tokens += getattr(piece, "tokens", ())
            for text, is_thought in self.push(piece):
                yield Piece(text, is_thought, tokens)
                tokens = ()
        for text, is_thought in self.rest():
            yield Piece(text, is_thought, tokens)
            tokens = ()
        if tokens:
            yield Piece("", logprobs=tokens)

    def push(self, piece: str) -> list[tuple[str, bool]]:
        """Take the next piece; texts that certainly belong somewhere, each with whether it is thought and not said."""
        self.n_pieces += self._thinking
        self._held += piece
        return list(self._split())

    def rest(self) -> list[tuple[str, bool]]:
        """What was still held back when the reply has ended."""
        held, self._held = self._held, ""
        if self._thinking:
            held = held.strip() if self._begins else held.rstrip()
        return [(held, self._thinking)] if held else []

    @property
    def _thinking(self) -> bool:
        return self._split == self._thoughts

    def _beginning(self) -> Iterator[tuple[str, bool]]:
        text = self._held.lstrip()
        if text.startswith(OPENED):
            self._held, self._begins, self._split = text[len(OPENED) :], True, self._thoughts
            yield from self._split()
        elif not OPENED.startswith(text):
            self._split = self._answer
            yield from self._split()

    def _thoughts(self) -> Iterator[tuple[str, bool]]:
        text, tag, answer = self._held.partition(CLOSED)
        if self._begins:
            text = text.lstrip()
        shown = text if tag else text[: len(text) - overlap(text, CLOSED)]
        shown = shown.rstrip()
        if shown:
            self._begins = False
            yield shown, True
        if tag:
            self._held, self._begins, self._split = answer, True, self._answer
            yield from self._split()
        else:
            self._held = text[len(shown) :]

    def _answer(self) -> Iterator[tuple[str, bool]]:
        text, self._held = self._held, ""
        if self._begins:
            text = text.lstrip()
        if text:
            self._begins = False
            yield text, False


def opens_thoughts(template_end: str) -> bool:
    """Whether the template text before a reply ends with an open tag."""
    return template_end.rstrip().endswith(OPENED)
