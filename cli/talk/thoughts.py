"""Tells a model's reasoning from what it says to the user."""

from __future__ import annotations

from collections.abc import Iterator

from edgekv.engine.endings import overlap

OPEN, CLOSE = "<think>", "</think>"


class Thoughts:
    """Parts of a reply that comes in pieces, as (whether it is reasoning, text).

    Reasoning stands at the beginning of a reply, between <think> and </think>. The same tags further on are text.
    """

    def __init__(self, *, begun: bool = False) -> None:
        """begun: the chat template has opened the reasoning already"""
        self._thinks: bool | None = True if begun else None  # None: nothing has told yet
        self._held = ""

    def add(self, piece: str) -> Iterator[tuple[bool, str]]:
        """The parts that a piece completes. What may be the beginning of a tag is held back."""
        self._held += piece
        if self._thinks is None:
            text = self._held.lstrip()
            if OPEN.startswith(text):
                return
            self._thinks = text.startswith(OPEN)
            if self._thinks:
                self._held = text[len(OPEN) :]
        if self._thinks:
            text, tag, rest = self._held.partition(CLOSE)
            if not tag:
                n_held = overlap(text, CLOSE)
                text, rest = text[: len(text) - n_held], CLOSE[:n_held]
            self._held = rest
            if text:
                yield True, text
            if not tag:
                return
            self._thinks = False
        if self._held:
            yield False, self._held
            self._held = ""

    def end(self) -> Iterator[tuple[bool, str]]:
        """What was held back, when the reply has ended."""
        if self._held:
            yield bool(self._thinks), self._held
            self._held = ""


def parted(reply: str, *, begun: bool = False) -> tuple[str, str]:
    """The reasoning and the answer of a whole reply."""
    thoughts = Thoughts(begun=begun)
    parts = [*thoughts.add(reply), *thoughts.end()]
    reasoning, answer = ("".join(text for thought, text in parts if thought is kind).strip() for kind in (True, False))
    return reasoning, answer
