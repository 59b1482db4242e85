"""What a conversation is beside its cells and its log: its turns, the token that it still has to feed, its sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from edgekv.store.log import TokenLog

from .sampler import SamplerState


class _Prompt(NamedTuple):
    """A prompt that is being read.

    first: tokens that were fed before it
    states: of the turns, while it is read and after it
    log: holds its tokens already, and the state after each; None = it is a new one
    opened: the first token of a content, before which there is only the opening; None = it has not come yet
    end: tokens that are fed when all of it is; None = more may come
    """

    first: int
    states: tuple[str, str]
    log: TokenLog | None
    opened: int | None = None
    end: int | None = None


class _Known(NamedTuple):
    """All that is noted of a conversation. It is replaced as a whole, so no exception leaves a part of it behind.

    turns: the state of the turns before `prompt`
    pending: a token that was said after `said_at` tokens were fed
    """

    turns: str = "new"
    pending: tuple[int, ...] = ()
    said_at: int = 0
    sampler: SamplerState | None = None
    prompt: _Prompt | None = None


class SequenceState:
    """Turns, pending token and sampler of a conversation, as they follow from the number of tokens that have cells.

    That number changes within one native call, and nothing is noted after it. So the state agrees with the cells
    wherever an exception comes, be it Ctrl-C: a token is pending until there are more tokens than before it was said,
    and a prompt that fed no token has changed nothing.

    n_past: tokens that have cells
    """

    def __init__(self, n_past: Callable[[], int]) -> None:
        self._n_past = n_past
        self._known = _Known()

    @property
    def turns(self) -> str:
        """The state of the turns, one of `prompt.turns.Turns`."""
        known, n_past = self._known, self._n_past()
        prompt = known.prompt
        if prompt is None:
            return known.turns
        if prompt.log is not None:
            return known.turns if n_past <= prompt.first else prompt.log.state_at(n_past)
        if prompt.end is not None and n_past >= prompt.end:
            return prompt.states[1]
        if n_past <= prompt.first:
            return known.turns
        if known.turns == "new" and (prompt.opened is None or n_past <= prompt.opened):
            return "opening"
        return prompt.states[0]

    @property
    def pending(self) -> tuple[int, ...]:
        """The token that was said and not fed yet, if there is one."""
        known, n_past = self._known, self._n_past()
        prompt = known.prompt
        read = prompt is not None and prompt.end is not None and n_past >= prompt.end
        return () if read or n_past > known.said_at else known.pending

    @property
    def sampler(self) -> SamplerState | None:
        """The state of the sampler after the last token that was said; None = there was none."""
        return self._known.sampler

    def set(self, turns: str, pending: tuple[int, ...], sampler: SamplerState | None) -> None:
        """Be as a conversation that has fed the tokens of now, such as one of a snapshot."""
        self._known = _Known(turns, pending, self._n_past(), sampler)

    def read(self, states: tuple[str, str], log: TokenLog | None = None) -> None:
        """Begin to read a prompt; the pending token is its first one, or is not wanted any more.

        states: of the turns, while it is read and after it
        log: holds its tokens already, and the state after each
        """
        prompt = _Prompt(self._n_past(), states, log)
        self._known = self._known._replace(turns=self.turns, pending=self.pending, prompt=prompt)

    def open(self, position: int) -> None:
        """Note the position of the first token of a content of the prompt; later ones make no difference."""
        prompt = self._known.prompt
        if prompt is not None and prompt.opened is None:
            self._known = self._known._replace(prompt=prompt._replace(opened=position))

    def end(self, n_past: int) -> None:
        """Note how many tokens will be fed when all of the prompt is."""
        prompt = self._known.prompt
        if prompt is not None:
            self._known = self._known._replace(prompt=prompt._replace(end=n_past))

    def say(self, token: int, sampler: SamplerState) -> None:
        """Note a token that is said, and the sampler after it."""
        self._known = _Known(self.turns, (token,), self._n_past(), sampler)

    def draw(self, sampler: SamplerState) -> None:
        """Note the sampler after a token that ends a reply, which is not said."""
        self._known = self._known._replace(sampler=sampler)
