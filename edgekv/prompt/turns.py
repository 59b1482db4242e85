"""The tokens that a conversation feeds around its contents (openings, turns, probes), and its state."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from edgekv.binding.model import Model
from edgekv.errors import SessionError

from .template import ChatFormat, chat_format, rendered
from .text import Prompt

Content = Sequence[str | os.PathLike[str]]
Parts: TypeAlias = tuple[str | os.PathLike[str], ...]  # of one content: texts and text files

PARAGRAPH = "\n\n"  # between the texts of a turn

# a turn in the model's chat template, the beginning of one that the next goes on with, or a text to continue; a whole
# conversation, or a whole text as it stands or as tokens, of which the session may have seen the beginning; such a
# beginning as tokens
Kind = Literal["chat", "read", "text", "messages", "whole", "tokens", "ahead"]

BEGINNINGS: tuple[Kind, ...] = ("read", "ahead")  # to which there is no reply
HISTORIES: tuple[Kind, ...] = ("messages", "whole", "tokens", "ahead")  # told from their first token on

# states while a prompt is read, and after
STATES: dict[Kind, tuple[str, str]] = {
    "chat": ("user", "assistant"),
    "read": ("open", "open"),
    "text": ("text", "text"),
    "messages": ("user", "assistant"),
    "whole": ("text", "text"),
    "tokens": ("text", "text"),
    "ahead": ("text", "text"),
}


class Turns:
    """Prompts of one conversation. `state` is what was fed last.

    state: "new", "open" (the beginning of a user turn), "user" (a turn that is not answered yet), "assistant", or
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
        """The prompt up to the first user content. Raises UnsupportedModelError for a model without a template."""
        form = self._format
        prompt = Prompt(self._model, begin=not form.holds_bos)
        if self.system is not None:
            prompt.template(form.before_system).content(self.system, role="system")
        return prompt.template(form.before_first)

    def prompt(self, kind: Kind, content: Content, instruction: str = "") -> Prompt:
        """The prompt to read. The instruction comes before the last content if the turn has another one above it.

        Raises SessionError for a kind that does not fit what was read before.
        """
        if instruction and (len(content) > 1 or self.state == "open"):
            content = [*content[:-1], f"{instruction} ", content[-1]]
        return {"chat": self.turn, "read": self.beginning, "text": self.text}[kind](content)

    def turn(self, content: Content) -> Prompt:
        """The prompt of the next user turn, or of the rest of one that was begun."""
        return self.beginning(content).template(self._format.after_user)

    def beginning(self, content: Content) -> Prompt:
        """The prompt of a turn without its end. Raises SessionError if the conversation is a plain text."""
        if self.state == "text":
            raise SessionError("this session continues a text; open another to chat")
        form = self._format
        if self.state == "new":
            return self.opening().content(*content)
        prompt = Prompt(self._model)
        if self.state == "open":
            return prompt.content(PARAGRAPH, *content)
        # a turn that was cancelled while it was read is closed first, with an empty reply
        return prompt.template((form.after_user if self.state == "user" else "") + form.between).content(*content)

    def text(self, content: Content) -> Prompt:
        """The prompt of a text as it stands. Raises SessionError if the conversation is a chat."""
        if self.state not in ("new", "text") or self.system is not None:
            raise SessionError("this session is a chat; open another to continue a text")
        return Prompt(self._model, begin=self.state == "new").content(*content, role="text")

    def from_beginning(self, content: Content) -> Prompt:
        """The prompt of a whole text as it stands, from its beginning."""
        return Prompt(self._model, begin=True).content(*content, role="text")

    def ids(self, tokens: Sequence[int]) -> Prompt:
        """The prompt of a whole text as tokens."""
        return Prompt(self._model).ids(tokens, "text")

    def whole(
        self,
        roles: Sequence[str],
        contents: Sequence[Parts | list[int]],
        tools: Sequence[dict[str, Any]] = (),
    ) -> Prompt:
        """The prompt of a conversation from its beginning: a role and a content for each message.

        A content may come as a list of tokens. tools: what the template describes as such.
        Raises InputError for roles in an order that the template does not take.
        """
        form = rendered(self._model, roles, tools)
        prompt = Prompt(self._model, begin=not form.holds_bos)
        for before, role, content in zip(form.before, roles, contents, strict=True):
            prompt.template(before)
            if isinstance(content, tuple):
                prompt.content(*content, role=role)
            else:
                prompt.ids(content, role)
        return prompt.template(form.after)

    def probe(self, question: str, n_tokens: int) -> list[int]:
        """The tokens whose attention says what matters: the question, as a turn of its own after what was read.

        If there are more than n_tokens, the last n_tokens.
        """
        form = self._format
        probe = Prompt(self._model).template(form.after_user + form.between).content(question)
        return list(deque(probe.tokens(), maxlen=n_tokens))
