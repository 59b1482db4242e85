"""Whole histories, as callers give them: checked, and made into prompts."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgekv.errors import InputError, SessionError

from .reply import Wanted

if TYPE_CHECKING:
    from edgekv.binding.model import Model
    from edgekv.prompt.text import Prompt
    from edgekv.prompt.turns import Turns

History: TypeAlias = str | Path | Sequence[int] | Sequence[Mapping[str, Any]]
MESSAGE_ROLES = ("system", "user", "assistant")
QUESTION_CHARS = 4096  # of which a probe has the last tokens


def wanted_of(history: History) -> Wanted:
    """A reply to a history of messages, to a text or to token ids. Raises InputError for what is none of them."""
    if isinstance(history, (str, Path)):
        if history == "":
            raise InputError("the history is empty; give a text, token ids or messages to go on from")
        return Wanted(kind="whole", content=(_absolute(history),))
    if len(history) and isinstance(history[0], Mapping):
        roles, content = messages_of(history)
        return Wanted(kind="messages", roles=roles, content=content)
    return Wanted(kind="tokens", tokens=token_ids(history))


def token_ids(tokens: Sequence[Any]) -> array[int]:
    """Token ids, 4 bytes each. Raises InputError for none, and for what is no id."""
    if not len(tokens):
        raise InputError("the history is empty; give token ids or messages to go on from")
    for token in tokens:
        if isinstance(token, bool) or not hasattr(token, "__index__") or not 0 <= token < 1 << 31:
            raise InputError(f"the history holds {token!r}, which is no token id; give ids of the model's vocabulary")
    return array("i", tokens)


def check_ids(tokens: Sequence[int], n_vocab: int) -> Sequence[int]:
    """The same ids. Raises InputError for one that the vocabulary lacks."""
    for token in tokens:
        if token >= n_vocab:
            raise InputError(f"the vocabulary has no token {token}; give ids in [0, {n_vocab})")
    return tokens


def messages_of(messages: Sequence[Any]) -> tuple[tuple[str, ...], tuple[str | Path, ...]]:
    """Roles and contents of the messages of a conversation. Raises InputError for what is no message."""
    for message in messages:
        if not isinstance(message, Mapping) or not (
            isinstance(message.get("role"), str) and isinstance(message.get("content"), (str, Path))
        ):
            raise InputError(f"a message is {message!r}; give each as {{'role': ..., 'content': ...}}, both texts")
        if message["role"] not in MESSAGE_ROLES:
            raise InputError(f"a message is of {message['role']!r}; let one of {', '.join(MESSAGE_ROLES)} write it")
    last = messages[-1]
    if last["role"] == "user" and isinstance(last["content"], str) and not last["content"].strip():
        raise InputError("the last message of 'user' is empty; write something to answer")
    return tuple(message["role"] for message in messages), tuple(_absolute(it["content"]) for it in messages)


def _absolute(content: str | Path) -> str | Path:
    """The same for a worker, which may be in another folder."""
    return Path(os.path.abspath(content)) if isinstance(content, Path) else content


def question_of(roles: Sequence[str], contents: Sequence[str | Path]) -> str | None:
    """The end of the last message of the user, which the others are read with in mind; None = there is none."""
    for role, content in zip(reversed(roles), reversed(contents), strict=True):
        if role == "user":
            return _end_of(content) or None
    return None


def _end_of(content: str | Path) -> str:
    if isinstance(content, str):
        return content[-QUESTION_CHARS:]
    with suppress(OSError), content.open("rb") as file:  # whoever reads all of it says why it cannot be read
        file.seek(0, 2)
        file.seek(max(0, file.tell() - QUESTION_CHARS))
        return file.read().decode("utf-8", "ignore")
    return ""


def prompt_of(wanted: Wanted, model: Model, turns: Turns, replies: Iterable[list[int]]) -> Prompt:
    """The prompt of a history. Raises InputError for ids that the vocabulary lacks, SessionError for another system.

    replies: tokens of what was said before. A reply that has the text of one word for word is given its tokens
    """
    if wanted.kind in ("tokens", "ahead"):
        return turns.ids(check_ids(wanted.tokens, model.n_vocab))
    if wanted.kind == "whole":
        return turns.from_beginning(wanted.content)
    system = wanted.content[0] if wanted.roles[0] == "system" else None
    if turns.system is not None and turns.system != system:
        raise SessionError(
            f"the history has the system message {system!r}, but the session has {turns.system!r}; open a session "
            "with that of the history"
        )
    said = {"".join(model.text(tokens)): tokens for tokens in replies}
    contents = [
        said.get(content, content) if role == "assistant" and isinstance(content, str) else content
        for role, content in zip(wanted.roles, wanted.content, strict=True)
    ]
    return turns.whole(wanted.roles, contents)
