"""Checks whole histories, as callers give them, and makes prompts from them."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from edgekv.arguments import shown
from edgekv.errors import EdgeKVError, InputError, SessionError
from edgekv.generation.request import GenerationRequest
from edgekv.prompt.infill import Infill, infill_prompt
from edgekv.prompt.spool import rereadable
from edgekv.prompt.text import read_text
from edgekv.prompt.turns import Turns
from edgekv.store.log import OPENING
from edgekv.store.temp_array import TempArray

if TYPE_CHECKING:
    from edgekv.binding.model import Model
    from edgekv.prompt.text import Prompt
    from edgekv.prompt.tools import ToolCall
    from edgekv.prompt.turns import Parts


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


def request_of(history: History) -> GenerationRequest:
    """Return the request for a reply to messages, a text, a gap or token ids. Raises InputError for anything else."""
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


class Contents:
    """Positions of contents in a prompt, noted by `mark`, a callback for `Prompt.tokens`.

    first: of the first content after the opening; last: of the last one; 0 = there is none
    further_rules: of system messages in the opening after its first one. The first one and the tools end before them
    """

    def __init__(self) -> None:
        self.first = self.last = 0
        self.further_rules: list[int] = []
        self._has_rules = False

    def mark(self, n_before: int, role: str) -> None:
        """Note a part of the prompt."""
        if role not in OPENING:
            self.first, self.last = self.first or n_before, n_before
        elif role == "system" and not self.first:
            if self._has_rules:
                self.further_rules.append(n_before)
            self._has_rules = True


class HistoryPrompt:
    """The prompt of a whole history, which is rendered once, and tokenised once if it is stored, for several sessions.

    A message with exactly the text of a session's earlier reply, or with the same tool calls, gets that reply's tokens.
    """

    def __init__(self, request: GenerationRequest, model: Model) -> None:
        """Raise InputError for ids that the vocabulary lacks, and for messages that the chat template does not take."""
        self._model = model
        self._system: str | Path | None = None
        self._said: dict[int, str] = {}  # parts of the prompt that the assistant wrote, by their numbers
        self._array: TempArray | None = None
        self._is_chat = request.kind == "messages"
        turns = Turns(model, None)
        if request.kind in ("tokens", "ahead"):
            self._prompt = turns.ids(check_ids(request.tokens, model.n_vocab))
        elif request.kind == "infill":
            self._prompt = infill_prompt(model, request.content)
        elif not self._is_chat:
            self._prompt = turns.from_beginning(request.content)
        else:
            self._system = request.content[0] if request.roles[0] == "system" else None
            self._alike = _alike(request, model)
            roles, written, tools = with_tools(request, model)
            self._prompt = turns.whole(roles, written, tools, goes_on=goes_on(request))
            replies = [parts for role, parts in zip(roles, written, strict=True) if role == "assistant"]
            for number, parts in zip(self._prompt.numbers("assistant"), replies, strict=True):
                if (text := _text_of(parts)) is not None:
                    self._said[number] = self._alike(text)

    def store(self, folder: str | None) -> HistoryPrompt:
        """Tokenise the history, into a file in a folder (None = that of TMPDIR); returns itself.

        Raises InputError for a file that is not text, and SessionFileError if the folder has no room.
        """
        if self._array is None:
            array = TempArray(folder)
            try:
                self._prompt = self._prompt.stored(array)
            except BaseException:
                array.close()
                raise
            self._array = array
        return self

    @property
    def n_opening(self) -> int:
        """The tokens before the first content."""
        contents = Contents()
        for _ in self._prompt.tokens(contents.mark):
            if contents.first:
                break
        return contents.first

    def close(self) -> None:
        """Remove the file of tokens, if there is one."""
        if self._array is not None:
            self._array.close()

    def prompt(self, system: str | None = None, replies: Iterable[list[int]] = ()) -> Prompt:
        """Return the prompt for a session. Raises SessionError for another system message than the session's.

        system: the session's; None = it has none; replies: tokens of its earlier replies
        """
        if self._is_chat and system is not None and system != self._system:
            raise SessionError(
                f"the history has the system message {self._system!r}, but the session has {system!r}; open a session "
                "with that of the history"
            )
        if not self._said:
            return self._prompt
        known = {self._alike("".join(self._model.text(tokens))): tokens for tokens in replies}
        return self._prompt.replaced({i: known[text] for i, text in self._said.items() if text in known})


def history_prompt(request: GenerationRequest, model: Model, stored: Mapping[int, HistoryPrompt]) -> HistoryPrompt:
    """Return the prompt of a history, which may be stored already. stored: histories that requests name by numbers

    Raises SessionError for a stored history that is not there, and the errors of `HistoryPrompt`.
    """
    if request.stored is None:
        return HistoryPrompt(request, model)
    if request.stored not in stored:
        raise SessionError("the stored history is of another runtime, or its block has ended; store it in this one")
    return stored[request.stored]


def _alike(request: GenerationRequest, model: Model) -> Callable[[str], str]:
    """Return a function whose results are equal for replies that call the same tools."""
    if not any(request.calls):
        return str
    from edgekv.prompt.tool_form import tool_form  # few histories need it

    return tool_form(model).calls.alike


def _text_of(parts: Parts) -> str | None:
    """Return a content as one text; None = a file is part of it."""
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else None


def with_tools(
    request: GenerationRequest, model: Model
) -> tuple[tuple[str, ...], tuple[Parts, ...], Sequence[dict[str, Any]]]:
    """Return roles and contents of messages with their calls written out, and the tools for the template to describe.

    Raises InputError for tools in which a key is the name of a control token.
    """
    roles, use = request.roles, request.tools
    contents: tuple[Parts, ...] = tuple((content,) for content in request.content)
    if use is None and "tool" not in roles and not any(request.calls):
        return roles, contents, ()
    from edgekv.prompt.tool_form import described, generic, tool_form, written

    form = tool_form(model)
    contents = tuple(
        (*content, written(model, form, calls)) if calls else content
        for content, calls in zip(contents, request.calls, strict=True)
    )
    if not form.is_native:
        return *generic(roles, contents, () if use is None else use.tools), ()
    return roles, contents, () if use is None else described(model, use.tools)
