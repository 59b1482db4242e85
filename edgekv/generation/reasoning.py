"""Splits reasoning from the answer of a reply that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from .stopping import overlap

OPEN, CLOSE = "<think>", "</think>"


class ReasoningSplitter:
    """Splits a reply that comes in pieces into parts (is_reasoning, text).

    Reasoning stands at the beginning of a reply, between <think> and </think>. A tag may be cut anywhere between two
    pieces. The same tags further on are text.

    in_reasoning: the newest part is reasoning; None = not known yet
    has_reasoning: the reply begins with reasoning, which may be empty
    """

    def __init__(self, *, begun: bool = False) -> None:
        """Begin a reply. begun: the chat template has opened the tag already"""
        self.in_reasoning: bool | None = True if begun else None
        self.has_reasoning = begun
        self._held = ""

    def add(self, piece: str) -> Iterator[tuple[bool, str]]:
        """Yield the parts that a piece completes. A possible beginning of a tag is held back."""
        self._held += piece
        if self.in_reasoning is None:
            text = self._held.lstrip()
            if text != OPEN and OPEN.startswith(text):
                return
            self.in_reasoning = self.has_reasoning = text.startswith(OPEN)
            if self.in_reasoning:
                self._held = text[len(OPEN) :]
        if self.in_reasoning:
            text, tag, rest = self._held.partition(CLOSE)
            if not tag:
                n_held = overlap(text, CLOSE)
                text, rest = text[: len(text) - n_held], CLOSE[:n_held]
            self._held = rest
            if text:
                yield True, text
            if not tag:
                return
            self.in_reasoning = False
        if self._held:
            yield False, self._held
            self._held = ""

    def end(self) -> Iterator[tuple[bool, str]]:
        """Yield the text that was held back. Call it when the reply has ended."""
        if self._held:
            yield bool(self.in_reasoning), self._held
            self._held = ""


def split_reasoning(reply: str, *, begun: bool = False) -> tuple[str, str]:
    """Return the reasoning and the answer of a whole reply."""
    split = ReasoningSplitter(begun=begun)
    parts = [*split.add(reply), *split.end()]
    thoughts, answer = ("".join(text for thought, text in parts if thought is kind).strip() for kind in (True, False))
    return thoughts, answer


def opens_reasoning(template_end: str) -> bool:
    """Return True if the template text before a reply ends with an open tag."""
    return template_end.rstrip().endswith(OPEN)
