"""The form in which a chat template writes tools and calls, found by rendering; or edgekv's own if it has none."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgekv.binding.model import Model
from edgekv.errors import InputError

from .template import render
from .text import Markup
from .tools import CallFormat, Tool, ToolCall
from .turns import Parts

_TOOL = Tool("EDGEKV_TOOL", "EDGEKV-DESCRIPTION", '{"type": "object", "properties": {}}')
_BRACKET = re.compile(r"[<\[|\uff5c]")  # begins, or is in, the names of markers
_ARGUMENTS = ("EDGEKV-KEY", "EDGEKV-VALUE")


@dataclass(frozen=True, slots=True)
class ToolForm:
    """Form of tools in prompts. is_native: the template describes tools and wraps results; calls: form of calls"""

    is_native: bool
    calls: CallFormat


def tool_form(model: Model) -> ToolForm:
    """Return the form of a model's template: its own if that writes calls as JSON in text, otherwise edgekv's."""
    template = model.header.tools_template
    calls = None if template is None else _derived(template, model.control_text("bos"), model.control_text("eos"))
    if calls is None or not all(_is_shown(model, text) for text in (calls.before, calls.after, calls.between)):
        return ToolForm(False, CallFormat())
    return ToolForm(True, calls)


@functools.lru_cache(maxsize=2)
def _derived(template: str, bos: str, eos: str) -> CallFormat | None:
    """Return how a template writes calls; None if it has no tools, or does not write calls as JSON."""
    for names in (("EDGEKV_ONE", "EDGEKV_TWO"), ("EDGEKV_ONE",)):  # some refuse two calls
        try:
            opening = render(template, [{"role": "user", "content": "EDGEKV-QUESTION"}], bos, eos, [_TOOL.as_dict()])
            whole = render(template, _messages(names), bos, eos, [_TOOL.as_dict()])
        except Exception:  # a template is a program, and may raise anything
            continue
        told = all(text in whole for text in (_TOOL.name, _TOOL.description, "EDGEKV-RESULT"))
        if told and whole.startswith(opening):
            found = _cut(whole[len(opening) :], names)
            # a call that is told with its id, for example, is written in another way each time
            return None if found is None or "EDGEKV" in found.before + found.after + found.between else found
    return None


def _messages(names: Sequence[str]) -> list[dict[str, Any]]:
    calls = [
        {"id": f"EDGEKV{i:03}", "type": "function", "function": {"name": name, "arguments": dict([_ARGUMENTS])}}
        for i, name in enumerate(names)
    ]
    results = [{"role": "tool", "name": name, "content": "EDGEKV-RESULT"} for name in names]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    return [{"role": "user", "content": "EDGEKV-QUESTION"}, said, *results]


def _cut(text: str, names: Sequence[str]) -> CallFormat | None:
    """Return the format of the calls of these names at the beginning of a text."""
    arguments = re.escape(json.dumps(dict([_ARGUMENTS])))
    found = [re.search(rf'\{{"(\w+)": "{name}", "(\w+)": {arguments}\}}', text) for name in names]
    first, last = found[0], found[-1]
    if first is None or last is None:
        return None
    before = text[: first.start()]
    if first is last:
        # The end of a call cannot be told from the end of the message, unless nothing begins a call either.
        return None if before else CallFormat("", first[1], first[2], "", "")
    ending = text[first.end() : last.start()].removesuffix(before)
    after = _common(ending, text[last.end() :])
    return CallFormat(before, first[1], first[2], after, ending[len(after) :]) if before else None


def _common(one: str, other: str) -> str:
    n = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:n]


def _is_shown(model: Model, text: str) -> bool:
    """Return True if a reply of these tokens shows the text: control tokens show nothing."""
    return all(model.piece(token) for token in model.tokenize(text, special=True))


def _holds_marker(model: Model, text: str) -> bool:
    """Return True if a text holds markers when it is read as a template's."""
    return model.tokenize(text, special=True) != model.tokenize(text)


def written(model: Model, form: ToolForm, calls: Sequence[ToolCall]) -> str:
    """Return calls as the model writes them: with markers if the template has them, and no argument names one."""
    text = form.calls.written(calls)
    is_own = form.is_native and not any(_holds_marker(model, call.arguments) for call in calls)
    return Markup(text) if is_own and _holds_marker(model, text) else text


def described(model: Model, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return tools for a template to describe. It would read names of markers, so these get blanks.

    Raises InputError for a tool in which a key is such a name.
    """
    found = []
    for tool in tools:
        told = _spelt(model, tool.as_dict())
        if _holds_marker(model, json.dumps(told, ensure_ascii=False)):
            raise InputError(f"tools describes {tool.name!r} with the name of a control token; leave that out")
        found.append(told)
    return found


def _spelt(model: Model, value: Any) -> Any:
    """Return a value of JSON with a blank within each name of a marker in its texts. Keys stay as they are."""
    if isinstance(value, dict):
        return {key: _spelt(model, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spelt(model, inner) for inner in value]
    if isinstance(value, str) and _holds_marker(model, value):
        return _BRACKET.sub(r"\g<0> ", value)
    return value


# The prompt about tools for a model whose template has none.
INTRODUCTION = (
    "You can call functions. Each line between <tools> and </tools> describes one as JSON, with a JSON schema of its "
    "arguments:\n<tools>\n{tools}\n</tools>\n"
    "To call a function, write its name and arguments as JSON, and wait for the result:\n"
    '<tool_call>\n{{"name": "...", "arguments": {{...}}}}\n</tool_call>'
)


def generic(
    roles: Sequence[str], contents: Sequence[Parts], tools: Sequence[Tool]
) -> tuple[tuple[str, ...], tuple[Parts, ...]]:
    """Return messages for a template without tools: the system message describes them, and the user brings results."""
    messages: list[tuple[str, Parts]] = []
    for role, content in zip(roles, contents, strict=True):
        if role != "tool":
            messages.append((role, content))
            continue
        result = ("<tool_response>\n", *content, "\n</tool_response>")
        if messages and messages[-1][0] == "tool":
            result = (*messages.pop()[1], "\n", *result)
        messages.append(("tool", result))
    if tools:
        lines = "\n".join(json.dumps(tool.as_dict()["function"], ensure_ascii=False) for tool in tools)
        told: Parts = (INTRODUCTION.format(tools=lines),)
        if messages[0][0] == "system":
            told = (*messages.pop(0)[1], "\n\n", *told)
        messages.insert(0, ("system", told))
    return (
        tuple("user" if role == "tool" else role for role, _ in messages),
        tuple(content for _, content in messages),
    )
