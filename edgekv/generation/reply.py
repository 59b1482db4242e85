"""A whole reply: its text, its figures, and the calls of tools that it ends with."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from edgekv.other_names import REPLY, OtherNames

from .logprobs import Piece, Token
from .stats import Stats

if TYPE_CHECKING:
    from edgekv.prompt.tools import ToolCall


@dataclass(frozen=True, slots=True)
class Reply(OtherNames):
    """A whole reply; `str` gives its text.

    text: the text, without calls of tools
    stats: tokens, times and memory
    tokens: the tokens of the text with their log probabilities, if `logprobs` asked for them
    """

    _meant: ClassVar[Mapping[str, str]] = REPLY

    text: str
    stats: Stats
    tokens: tuple[Token, ...] = ()

    def __str__(self) -> str:
        return self.text

    if not TYPE_CHECKING:

        def __getitem__(self, key):
            raise TypeError(f"'Reply' object has no key {key!r}; {REPLY['content']}")

    @classmethod
    def of(cls, pieces: Generator[str, None, Stats]) -> Reply:
        """Return the reply that pieces make; the generator returns its figures."""
        said: list[str] = []
        while True:
            try:
                said.append(next(pieces))
            except StopIteration as end:
                return cls.made_of(said, end.value)

    @classmethod
    def made_of(cls, said: Sequence[str], stats: Stats) -> Reply:
        """Return the reply with these pieces and figures."""
        tokens = (token for piece in said if isinstance(piece, Piece) for token in piece.tokens)
        return cls("".join(said), stats, tuple(tokens))

    @property
    def finish_reason(self) -> str:
        """The reason why the reply ended, as `Stats` has it: "end", "length", "stop", and so on."""
        return self.stats.finish_reason

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools that the reply ends with."""
        return self.stats.tool_calls

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message of the assistant, to go on from: a list of messages takes it as it is."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in self.tool_calls]
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        return message
