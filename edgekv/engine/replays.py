"""Blocks that are fed once more as a probe, as if the model were to repeat them (KVzip, arXiv:2505.23416)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from edgekv.options import REPLAY_TOKENS, Options
from edgekv.prompt.text import Prompt

if TYPE_CHECKING:
    from edgekv.binding.model import Model

INSTRUCTION = "\n\nRepeat the text above.\n\n"


class Replays:
    """The tokens that were fed since the last scoring, and the instruction that goes before them.

    instruction: token ids; it is a plain text, so it goes with any model and at any place of a turn
    block: the most tokens that are replayed; 0 = nothing ever is, as with most policies
    """

    def __init__(self, instruction: Sequence[int] = (), block: int = 0) -> None:
        self._instruction = instruction
        self._unscored: deque[int] = deque(maxlen=block)

    @classmethod
    def of(cls, model: Model, options: Options) -> Replays:
        """What the policy of a runtime wants."""
        if not options.replays:
            return cls()
        return cls(list(Prompt(model).content(INSTRUCTION).tokens())[-REPLAY_TOKENS:], options.block)

    @property
    def wanted(self) -> bool:
        """Whether tokens are replayed before they are scored."""
        return self._unscored.maxlen != 0

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
