"""Blocks that are fed once more as a probe, as if the model were to repeat them (KVzip, arXiv:2505.23416)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgekv.options import REPLAY_TOKENS, Options
from edgekv.prompt.text import Prompt

if TYPE_CHECKING:
    from edgekv.binding.model import Model

INSTRUCTION = "\n\nRepeat the text above.\n\n"


class Replays:
    """The tokens that were fed since the last scoring, and the instruction that goes before them.

    The instruction is a plain text, so it goes with any model and at any place of a turn.
    """

    def __init__(self, model: Model, options: Options) -> None:
        self._instruction = list(Prompt(model).content(INSTRUCTION).tokens())[-REPLAY_TOKENS:]
        self._unscored: deque[int] = deque(maxlen=options.block)

    def add(self, tokens: Iterable[int]) -> None:
        """Note tokens that have their cells."""
        self._unscored.extend(tokens)

    def clear(self) -> None:
        """Forget the tokens: they have their scores."""
        self._unscored.clear()

    def restore(self, unscored: Iterable[int]) -> None:
        """Go back to the tokens of a snapshot."""
        self.clear()
        self.add(unscored)

    @property
    def unscored(self) -> tuple[int, ...]:
        """The tokens, oldest first."""
        return tuple(self._unscored)

    @property
    def probe(self) -> list[int]:
        """What to feed, so that they are scored; nothing where there are none."""
        return [*self._instruction, *self._unscored] if self._unscored else []
