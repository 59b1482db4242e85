"""The turns of one conversation, its pending token and its sampler, as they follow from the tokens that were fed."""

from __future__ import annotations

from typing import NamedTuple

from edgekv.store.log import TokenLog

from .sampler import SamplerState


class Dialogue(NamedTuple):
    """The state of a conversation beside its cells and its log.

    turns: the state of its turns, one of `prompt.turns.Turns`
    pending: tokens that are generated, but not fed yet
    sampler: the state of the sampler after the last reply; None = there was no reply
    """

    turns: str = "new"
    pending: tuple[int, ...] = ()
    sampler: SamplerState | None = None


class _Prompt(NamedTuple):
    """A prompt that is being read.

    first: n_past before the prompt
    states: states of the turns, while the prompt is read and after it
    log: a log that holds its tokens already, and the state after each; None = a new prompt
    opened: position of the first token of a content, after the opening; None = not reached yet
    end: n_past after the prompt; None = more tokens may come
    """

    first: int
    states: tuple[str, str]
    log: TokenLog | None
    opened: int | None = None
    end: int | None = None


class _Known(NamedTuple):
    """All notes on a conversation. They are replaced as a whole, so an exception leaves no part of a change behind.

    turns: the state of the turns before `prompt`
    pending: a token that was generated after `said_at` tokens were fed
    """

    turns: str = "new"
    pending: tuple[int, ...] = ()
    said_at: int = 0
    sampler: SamplerState | None = None
    prompt: _Prompt | None = None


class TurnState:
    """Notes on the turns of a conversation. What holds now follows from n_past, the number of tokens that have cells.

    That number changes within one native call, and nothing is noted after it. So the notes agree with the cells after
    any exception, also Ctrl-C: a token is pending until there are more tokens than when it was generated, and a prompt
    that fed no token has changed nothing.
    """

    _known = _Known()

    @property
    def sampler(self) -> SamplerState | None:
        """The state of the sampler after the last generated token; None = there was none."""
        return self._known.sampler

    @property
    def n_past(self) -> int:
        """Tokens that have cells, or had them last."""
        raise NotImplementedError

    @property
    def dialogue(self) -> Dialogue:
        """Turns, pending tokens and sampler."""
        return Dialogue(self.turns, self.pending, self.sampler)

    @property
    def turns(self) -> str:
        """The state of the turns, one of `prompt.turns.Turns`."""
        known, prompt = self._known, self._known.prompt
        if prompt is None:
            return known.turns
        n_past = self.n_past
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
        """The generated token that is not fed yet, if there is one."""
        known, prompt, n_past = self._known, self._known.prompt, self.n_past
        read = prompt is not None and prompt.end is not None and n_past >= prompt.end
        return () if read or n_past > known.said_at else known.pending

    def set(self, dialogue: Dialogue) -> None:
        """Set the state after the tokens that are fed now, for example from a snapshot."""
        self._known = _Known(dialogue.turns, dialogue.pending, self.n_past, dialogue.sampler)

    def begin_prompt(self, states: tuple[str, str], log: TokenLog | None = None) -> None:
        """Begin to read a prompt. The pending token is its first token, or is given up.

        states: states of the turns, while the prompt is read and after it
        log: a log that holds its tokens already, and the state after each
        """
        prompt = _Prompt(self.n_past, states, log)
        self._known = self._known._replace(turns=self.turns, pending=self.pending, prompt=prompt)

    def note_opened(self, position: int) -> None:
        """Note the position of the first token of a content of the prompt; later calls change nothing."""
        prompt = self._known.prompt
        if prompt is not None and prompt.opened is None:
            self._known = self._known._replace(prompt=prompt._replace(opened=position))

    def end_prompt(self, n_past: int) -> None:
        """Note n_past at the end of the prompt."""
        prompt = self._known.prompt
        if prompt is not None:
            self._known = self._known._replace(prompt=prompt._replace(end=n_past))

    def note_token(self, token: int, sampler: SamplerState) -> None:
        """Note a generated token, and the sampler after it."""
        raise NotImplementedError

    def note_end(self, sampler: SamplerState) -> None:
        """Note the sampler after a token that ends a reply. Such a token does not belong to the reply."""
        self._known = self._known._replace(sampler=sampler)
