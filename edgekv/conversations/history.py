"""Checks whole histories, as callers give them, and makes requests of them."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from edgekv.arguments import shown
from edgekv.documents.text_file import read_text
from edgekv.errors import EdgeKVError, InputError
from edgekv.generation.request import GenerationRequest
from edgekv.prompt.infill import Infill
from edgekv.prompt.spool import rereadable

if TYPE_CHECKING:
    from edgekv.prompt.tools import ToolCall


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """A history that was checked, rendered and tokenised (`Runtime.stored`).

    request: what names it in the engine
    n_opening: tokens before the first content: those of the system message, the tools and the chat template
    """

    request: GenerationRequest
    n_opening: int


Messages: TypeAlias = Sequence[Mapping[str, Any]]
History: TypeAlias = str | Path | Infill | Sequence[int] | Messages | StoredHistory
MESSAGE_ROLES = ("system", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")  # types of parts of a content, as clients of OpenAI's API write them
QUESTION_CHARS = 4096  # characters; a probe takes their last tokens


def are_messages(prompt: object) -> TypeGuard[Messages]:
    """Return True for a list that begins with a message."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def request_of(
    history: History,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: str | Mapping[str, Any] = "auto",
    parallel_tool_calls: bool = True,
) -> GenerationRequest:
    """Return the request for a reply to messages, a text, a gap or token ids. Raises InputError for anything else.

    Tools, and their errors, are those of `tool_use`. A stored history that has tools keeps its own.
    """
    request = _request_of(history)
    if request.tools is not None or (not tools and tool_choice in ("auto", "none")):
        return request
    from edgekv.prompt.tools import tool_use  # few histories need it

    return replace(request, tools=tool_use(tools, tool_choice, parallel=parallel_tool_calls))


def _request_of(history: History) -> GenerationRequest:
    if isinstance(history, StoredHistory):
        return history.request
    if isinstance(history, Infill):
        texts = (history.before, history.after, *(part for file in history.files for part in file))
        return GenerationRequest(kind="infill", content=tuple(map(_absolute, texts)))
    if isinstance(history, (str, Path)):
        if history == "":
            raise InputError("the history is empty; give a text, token ids or messages to go on from")
        return GenerationRequest(kind="whole", content=(_absolute(history),))
    if isinstance(history, (Mapping, bytes)) or not (isinstance(history, Sized) and hasattr(history, "__getitem__")):
        raise InputError(f"the history is {history!r}; give a list of messages, token ids, a text or the Path of one")
    if are_messages(history):
        return messages_of(history)
    return GenerationRequest(kind="tokens", tokens=token_ids(history))


@contextmanager
def rereadable_request(
    request: GenerationRequest, cancelled: threading.Event | None = None
) -> Iterator[GenerationRequest]:
    """Yield a request whose files can be read more than once during the block, as texts (`prompt.spool.rereadable`)."""
    with ExitStack() as copies:
        content = (
            copies.enter_context(rereadable(part, cancelled)) if isinstance(part, Path) else part
            for part in request.content
        )
        yield replace(request, content=tuple(content))


def token_ids(tokens: Sequence[Any], least: int = 1) -> array[int]:
    """Return token ids, 4 bytes each. least: how many there must be

    Raises InputError for a value that is no list, for an empty list, and for a value that is no id.
    """
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Sized):
        raise InputError(f"tokens={tokens!r} is no list; give a list of token ids")
    if len(tokens) < least:
        raise InputError("the history is empty; give token ids or messages to go on from")
    for token in tokens:
        if isinstance(token, bool) or not hasattr(token, "__index__") or not 0 <= token < 1 << 31:
            raise InputError(f"tokens holds {token!r}, which is no token id; give ids of the model's vocabulary")
    return array("i", tokens)


def check_ids(tokens: Sequence[int], n_vocab: int) -> Sequence[int]:
    """Return the ids unchanged. Raises InputError for an id that the vocabulary lacks."""
    for token in tokens:
        if token >= n_vocab:
            raise InputError(f"the vocabulary has no token {token}; give ids in [0, {n_vocab})")
    return tokens


def messages_of(messages: Sequence[Any]) -> GenerationRequest:
    """Return the request for a reply to messages. Raises InputError for a value that is no message."""
    calls = tuple(_calls_of(it) for it in messages)
    messages = [_with_text(message, its) for message, its in zip(messages, calls, strict=True)]
    for message, its in zip(messages, calls, strict=True):
        if not isinstance(message, Mapping) or not (
            isinstance(message.get("role"), str) and isinstance(message.get("content"), (str, Path))
        ):
            raise InputError(f"a message is {message!r}; give each as {{'role': ..., 'content': ...}}, both texts")
        if message["role"] not in MESSAGE_ROLES:
            raise InputError(f"a message is of {message['role']!r}; let one of {', '.join(MESSAGE_ROLES)} write it")
        if its and message["role"] != "assistant":
            raise InputError(f"a message of {message['role']!r} has tool_calls; let 'assistant' write them")
    last = messages[-1]
    if last["role"] == "user" and isinstance(last["content"], str) and not last["content"].strip():
        raise InputError("the last message of 'user' is empty; write something to answer")
    roles = tuple(message["role"] for message in messages)
    contents = tuple(_absolute(message["content"]) for message in messages)
    return GenerationRequest(kind="messages", roles=roles, content=contents, calls=calls)


def _with_text(message: Any, calls: Sequence[ToolCall]) -> Any:
    """Return a message with its parts as one text, in lines. One that only calls tools may have no content."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if calls and content is None:
        return {**message, "content": ""}
    return {**message, "content": "\n".join(map(_text_of_part, content))} if isinstance(content, list) else message


def _text_of_part(part: Any) -> str:
    """Return the text of a part of a content. Raises InputError for any other part, such as an image."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
        raise InputError(f"a content has the part {shown(part)}; give texts, as {{'type': 'text', 'text': ...}}")
    return str(part["text"])


def goes_on(request: GenerationRequest) -> bool:
    """Return True if the last of some messages is the assistant's text, which the reply goes on with."""
    return request.roles[-1] == "assistant" and not any(request.calls[-1:])


def _calls_of(message: object) -> tuple[ToolCall, ...]:
    given = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not given:
        return ()
    from edgekv.prompt.tools import calls_of  # few histories need it

    return calls_of(given)


def _absolute(content: str | Path) -> str | Path:
    """Return a content with an absolute path, because a worker may run in another folder."""
    return Path(os.path.abspath(content)) if isinstance(content, Path) else content


def question_of(request: GenerationRequest) -> str | None:
    """Return the end of the user's last message, the question to read the others with; None = there is none.

    request: one whose files can be read more than once (`rereadable_request`)
    """
    if isinstance(request.question, str):
        return request.question  # a stored history has it already
    for role, content in zip(reversed(request.roles), reversed(request.content), strict=False):  # a text has no roles
        if role == "user":
            return _end_of(content) or None
    return None


def _end_of(content: str | Path) -> str:
    if isinstance(content, str):
        return content[-QUESTION_CHARS:]
    end = ""
    with suppress(EdgeKVError):  # the reader raises the error
        for piece in read_text(content):
            end = (end + piece)[-QUESTION_CHARS:]
    return end
