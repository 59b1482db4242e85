"""Prompts of whole histories: rendered by the chat template, tokenised, and fitted to what a session has said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekv.errors import SessionError
from edgekv.generation.request import GenerationRequest
from edgekv.prompt.infill import infill_prompt
from edgekv.prompt.turns import Turns
from edgekv.store.log import OPENING
from edgekv.store.temp_array import TempArray

from .history import check_ids, goes_on

if TYPE_CHECKING:
    from edgekv.binding.model import Model
    from edgekv.prompt.text import Prompt
    from edgekv.prompt.turns import Parts


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
