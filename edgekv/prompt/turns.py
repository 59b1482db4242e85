"""The tokens that a conversation feeds around its contents (openings, turns, probes), and its state."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

from edgekv.binding.model import Model
from edgekv.errors import ConfigError, SessionError
from edgekv.store.log import TEMPLATE

from .template import ChatFormat, chat_format, rendered
from .text import PARAGRAPH, WITHIN, Prompt

Content = Sequence[str | os.PathLike[str]]
Parts: TypeAlias = tuple[str | os.PathLike[str], ...]  # texts and text files of one content

TOKEN_CHARS = 64  # characters a token; more than the last tokens of a long question have

# A mark, and the end of a quotation or a bracket. The full-width and Arabic marks need no space after them.
_END = re.compile("[?]+[\"'\u201d\u2019\u00bb)\\]]*(?=\\s)|[\uff1f\u061f]+")

Kind = Literal[
    "chat",  # a turn in the model's chat template
    "read",  # the beginning of a turn, which the next one continues
    "text",  # a raw prompt: a text to continue, whose names of control tokens are these tokens
    "messages",  # a whole conversation; here and below the session may have read its beginning
    "whole",  # a whole raw prompt
    "tokens",  # a whole text as tokens
    "ahead",  # the beginning of a whole text as tokens, without a reply
    "infill",  # two texts with a gap between
]

BEGINNINGS: tuple[Kind, ...] = ("read", "ahead")  # kinds of turns without a reply
HISTORIES: tuple[Kind, ...] = ("messages", "whole", "tokens", "ahead", "infill")  # kinds that begin at the first token

# States while a prompt is read, and after.
STATES: dict[Kind, tuple[str, str]] = {
    "chat": ("user", "assistant"),
    "read": ("open", "open"),
    "text": ("text", "text"),
    "messages": ("user", "assistant"),
    "whole": ("text", "text"),
    "tokens": ("text", "text"),
    "ahead": ("text", "text"),
    "infill": ("text", "text"),
}


class Probe(NamedTuple):
    """Tokens that are fed only for their queries.

    part_ends: number of tokens before the end of each of its parts, (P,) ascending
    """

    tokens: Sequence[int] = ()
    part_ends: Sequence[int] = ()


NO_PROBE = Probe()


class Turns:
    """Prompts of one conversation. `state` names the part that was fed last.

    state: "new", "open" (the beginning of a user turn), "user" (a turn without a reply yet), "assistant", or
    "text" (a text without a template)
    """

    def __init__(self, model: Model, system: str | None) -> None:
        self.state = "new"
        self._model = model
        self.system = system
        self._known: ChatFormat | None = None

    @property
    def _format(self) -> ChatFormat:
        if self._known is None:
            self._known = chat_format(self._model, with_system=self.system is not None)
        return self._known

    def opening(self) -> Prompt:
        """Make the prompt up to the first user content. Raises UnsupportedModelError for a model without a template."""
        form = self._format
        prompt = Prompt(self._model, begin=not form.holds_bos)
        if self.system is not None:
            prompt.template(form.before_system).content(self.system, role="system")
        return prompt.template(form.before_first)

    def prompt(self, kind: Kind, content: Content, instruction: str = "") -> Prompt:
        """Make the prompt to read. The instruction comes before the last content if the turn has another one above it.

        Raises SessionError for a kind that does not fit the prompts before.
        """
        if instruction and (len(content) > 1 or self.state == "open"):
            content = [*content[:-1], f"{instruction} ", content[-1]]
        return {"chat": self.turn, "read": self.beginning, "text": self.text}[kind](content)

    def turn(self, content: Content) -> Prompt:
        """Make the prompt of the next user turn, or of the rest of a turn that was begun."""
        return self.beginning(content).template(self._format.after_user).end()

    def beginning(self, content: Content) -> Prompt:
        """Make the prompt of a turn without its end. Raises SessionError if the conversation is a plain text."""
        if self.state == "text":
            raise SessionError("this session continues a text; open another to chat")
        form = self._format
        if self.state == "new":
            return self.opening().content(*content)
        prompt = Prompt(self._model)
        if self.state == "open":
            return prompt.content(*content) if content[0] == WITHIN else prompt.content(PARAGRAPH, *content)
        # A turn that was cancelled while it was read is closed first, with an empty reply.
        prompt.template((form.after_user if self.state == "user" else "") + form.between)
        if self.system is not None and form.after_system_again is not None:
            prompt.content(self.system, role=TEMPLATE).template(form.after_system_again)
        return prompt.content(*content)

    def text(self, content: Content) -> Prompt:
        """Make the raw prompt of a text. Raises SessionError if the conversation is a chat."""
        if self.state not in ("new", "text") or self.system is not None:
            raise SessionError("this session is a chat; open another to continue a text")
        return Prompt(self._model, begin=self.state == "new").raw(*content).end()

    def from_beginning(self, content: Content) -> Prompt:
        """Make the raw prompt of a whole text, from its beginning."""
        return Prompt(self._model, begin=True).raw(*content).end()

    def ids(self, tokens: Sequence[int]) -> Prompt:
        """Make the prompt of a whole text as tokens."""
        return Prompt(self._model).ids(tokens, "text")

    def whole(
        self,
        roles: Sequence[str],
        contents: Sequence[Parts],
        tools: Sequence[dict[str, Any]] = (),
        *,
        goes_on: bool = False,
    ) -> Prompt:
        """Make the prompt of a conversation from its beginning: a role and a content for each message.

        tools: tools that the template describes
        goes_on: the prompt ends with the last content, which the reply goes on with

        Raises InputError for roles in an order that the template does not take.
        """
        form = rendered(self._model, roles, tools)
        prompt = Prompt(self._model, begin=not form.holds_bos)
        for before, i in zip(form.before, form.order, strict=True):
            prompt.template(before).content(*contents[i], role=roles[i])
        return (prompt if goes_on else prompt.template(form.after)).end()

    def probe(self, question: str | Sequence[str], n_tokens: int) -> Probe:
        """Make the probe whose attention scores the cells: the question, as a turn of its own after the text.

        A question with more than n_tokens is cut to its last n_tokens.
        question: a text, whose parts `parts_of` finds, or its parts

        Raises ConfigError if several given parts have no room.
        """
        form = self._format
        parts = parts_of(question[-TOKEN_CHARS * n_tokens :]) if isinstance(question, str) else _apart(question)
        opening = form.after_user + form.between + (form.after_system_again or "")
        tokens: list[int] = list(Prompt(self._model).template(opening).tokens())
        ends = []
        for part in parts:
            tokens += Prompt(self._model).content(part).tokens()
            ends.append(len(tokens))
        if len(tokens) > n_tokens and len(parts) > 1 and not isinstance(question, str):
            raise ConfigError(
                f"focus has {len(parts)} parts of {len(tokens)} tokens, and a probe holds {n_tokens}; give fewer, or "
                f"open the runtime with probe_tokens={len(tokens)}"
            )
        n_left = max(0, len(tokens) - n_tokens)
        ends = [end - n_left for end in ends]
        return Probe(tokens[n_left:], tuple(end for end in dict.fromkeys(ends) if end > 0))


def _apart(parts: Sequence[str]) -> list[str]:
    """Put each part on a line of its own."""
    return [part if i == 0 else f"\n{part}" for i, part in enumerate(parts)]


def parts_of(question: str) -> tuple[str, ...]:
    """Return the parts of a question, which joined are the question.

    A part ends with a question mark. The text before it belongs to it, and the text after the last mark to the
    last part. So a text with one question, or none, is one part.
    """
    ends = [found.end() for found in _END.finditer(question)]
    last = question[ends[-1] :] if ends else ""
    if not re.search("[?\uff1f\u061f]", last):  # the text after the last question asks for nothing
        ends = ends[:-1]
    return tuple(question[first:end] for first, end in pairwise([0, *ends, len(question)]))
