"""Whole histories, as callers give them: checked, and made into prompts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgekv.errors import InputError, SessionError

if TYPE_CHECKING:
    from edgekv.binding.model import Model
    from edgekv.prompt.text import Prompt
    from edgekv.prompt.turns import Turns

    from .reply import Wanted


def token_ids(tokens: Sequence[Any]) -> array[int]:
    """Token ids, 4 bytes each. Raises InputError for none, and for what is no id."""
    if not len(tokens):
        raise InputError("the history is empty; give token ids or messages to go on from")
    for token in tokens:
        if isinstance(token, bool) or not hasattr(token, "__index__") or not 0 <= token < 1 << 31:
            raise InputError(f"the history holds {token!r}, which is no token id; give ids of the model's vocabulary")
    return array("i", tokens)


def contents_of(messages: Sequence[Any]) -> tuple[str | None, tuple[str, ...]]:
    """The system message, if one comes first, and what user and assistant wrote in turn.

    Raises InputError for messages that are no such conversation.
    """
    for message in messages:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise InputError(f"a message is {message!r}; give each as {{'role': ..., 'content': ...}}, both texts")
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    turns = messages[system is not None :]
    roles = [message["role"] for message in turns]
    for i, role in enumerate(roles):
        expected = ("user", "assistant")[i % 2]
        if role != expected:
            raise InputError(f"message {i} after the system message is of {role!r}; let {expected!r} write it")
    if len(turns) % 2 == 0:
        raise InputError("the last message of the history is not of 'user'; end with what is to be answered")
    if not all(message["content"].strip() for message in turns[::2]):
        raise InputError("a message of 'user' is empty; write something to answer")
    return system, tuple(message["content"] for message in turns)


def prompt_of(wanted: Wanted, model: Model, turns: Turns, replies: Iterable[list[int]]) -> Prompt:
    """The prompt of a history. Raises InputError for ids that the vocabulary lacks, SessionError for another system.

    replies: tokens of what was said before. A reply that has the text of one word for word is given its tokens
    """
    if wanted.kind == "tokens":
        for token in wanted.tokens:
            if token >= model.n_vocab:
                raise InputError(f"the vocabulary has no token {token}; give ids in [0, {model.n_vocab})")
        return turns.ids(wanted.tokens)
    if wanted.system != turns.system:
        raise SessionError(
            f"the history has the system message {wanted.system!r}, but the session has {turns.system!r}; open a "
            "session with that of the history"
        )
    said = {"".join(model.text(tokens)): tokens for tokens in replies}
    contents = [str(content) for content in wanted.content]
    return turns.whole([said.get(text, text) if i % 2 else text for i, text in enumerate(contents)])
