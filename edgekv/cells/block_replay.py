"""Block replay: every block is fed once more as a probe, as if the model repeated it (KVzip, arXiv:2505.23416)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from edgekv.options import REPLAY_TOKENS, Options
from edgekv.prompt.text import Prompt

if TYPE_CHECKING:
    from edgekv.binding.model import Model

INSTRUCTION = "\n\nRepeat the text above.\n\n"


class BlockReplay:
    """The tokens that were fed since the last scoring, and the instruction that goes before them.

    instruction: token ids of a plain text, which fits any model and any place of a turn
    block: the most tokens that are replayed; 0 = no replay, as with most policies
    """

    def __init__(self, instruction: Sequence[int] = (), block: int = 0) -> None:
        self._instruction = instruction
        self._block = block
        self._noted: tuple[tuple[int, ...], int] = (), 0  # the tokens, and the position after them; set at once

    @classmethod
    def of(cls, model: Model, options: Options) -> BlockReplay:
        """Return the replay that the policy of a runtime needs."""
        if not options.replays:
            return cls()
        return cls(list(Prompt(model).content(INSTRUCTION).tokens())[-REPLAY_TOKENS:], options.block)

    @property
    def wanted(self) -> bool:
        """True if tokens are replayed before they are scored."""
        return self._block != 0

    def follow(self, tokens: Sequence[int], n_past: int) -> None:
        """Note tokens that have their cells; tokens that were noted before are left out. n_past: tokens fed so far"""
        unscored, end = self._noted
        if self.wanted and n_past > end:
            self._noted = (*unscored, *tokens[end - n_past :])[-self._block :], n_past

    def restore(self, unscored: Iterable[int], n_past: int) -> None:
        """Go back to the unscored tokens of a snapshot; with none, all tokens have their scores."""
        self._noted = tuple(unscored)[-self._block :] if self.wanted else (), n_past

    @property
    def unscored(self) -> tuple[int, ...]:
        """The tokens, oldest first."""
        return self._noted[0]

    def probe(self, *, evicts: bool) -> list[int]:
        """Return the probe that scores the tokens: the instruction, then the tokens; empty if all have their scores.

        evicts: cells are to go; if all have their scores the instruction alone attends to them, which only raises some
        """
        return [*self._instruction, *self.unscored] if self.unscored or (evicts and self.wanted) else []
