"""Tools that a model may call, the form of its calls, and its calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgekv.errors import ConfigError, InputError
from edgekv.grammar.combinations import multiplies
from edgekv.grammar.key_rule import key_rule
from edgekv.grammar.source import Grammar, schema_of
from edgekv.grammar.tool_schemas import TOOL_OPTIONS, FittedSchema

MOST_TOOLS = 128
MOST_CALLS = 16  # the most calls in one reply
CHOICES = ("auto", "none", "required")

_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")  # MCP servers have dots and slashes


def _integer(digits: str) -> int | str:
    """Return an integer, or its digits if Python makes no integer of so many."""
    try:
        return int(digits)
    except ValueError:
        return digits


_DECODER = json.JSONDecoder(parse_int=_integer)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. parameters: a JSON schema of its arguments, as JSON"""

    name: str
    description: str
    parameters: str

    def as_dict(self) -> dict[str, Any]:
        """Return the tool in the form that chat templates read."""
        function = {"name": self.name, "description": self.description, "parameters": json.loads(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wrote, for the caller to carry out. arguments: JSON that fits the tool's parameters"""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Limits of a reply's use of tools.

    tools: the tools that the template shows to the model
    callable: the tools that it may call
    must_call: the reply is a call, or several
    most_calls: the most calls in the reply
    """

    tools: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    must_call: bool = False
    most_calls: int = MOST_CALLS


def tool_use(
    tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any] = "auto", *, parallel: bool = True
) -> ToolUse | None:
    """Return the use of tools that a caller asks for; None if there are no tools.

    tools: each {"type": "function", "function": {"name", "description", "parameters"}}
    choice: "auto", "none", "required", or {"type": "function", "function": {"name"}} for a call of one, or
        {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}} if only some may be called, "auto" or "required"
    parallel: a reply may have several calls

    Raises ConfigError for invalid tools and choices, and GrammarError for parameters that are no JSON object.
    Constraints that no grammar can express are dropped (docs/replies.md).
    """
    found = _tools(tools)
    allowed, mode, most = found, choice, MOST_CALLS if parallel else 1
    if isinstance(choice, Mapping):
        if choice.get("type") == "allowed_tools":
            names, mode = _allowed(choice)
        else:
            names, mode, most = [_named(choice)], "required", 1
        allowed = tuple(tool for tool in found if tool.name in names)
        known = [tool.name for tool in found]
        if not names or any(name not in known for name in names):
            raise ConfigError(f"tool_choice={dict(choice)!r} names no tool; give one of tools, or auto")
    if mode not in CHOICES:
        possible = f"{', '.join(CHOICES)}, one of tools, or allowed_tools"
        raise ConfigError(f"tool_choice={choice!r} is unknown; possible: {possible}")
    if not found:
        if choice == "required":
            raise ConfigError("tool_choice='required' needs tools; give some, or leave it out")
        return None
    return ToolUse(found, () if mode == "none" else allowed, mode == "required", most)


def _named(tool: object) -> object:
    """Return the name of {"function": {"name"}}; None if it has none."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _allowed(choice: Mapping[str, Any]) -> tuple[list[object], Any]:
    """Return the names of the tools that may be called, and the mode, "auto" or "required"."""
    given = choice.get("allowed_tools")
    tools = given.get("tools") if isinstance(given, Mapping) else None
    mode = given.get("mode", "auto") if isinstance(given, Mapping) else None
    return [*map(_named, tools if isinstance(tools, (list, tuple)) else ())], mode


def _tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise ConfigError(f"tools={tools!r} is no list; give a list of functions")
    if len(tools) > MOST_TOOLS:
        raise ConfigError(f"tools has {len(tools)} tools, but at most {MOST_TOOLS} are taken; give fewer")
    found = tuple(map(_tool, tools))
    names = [tool.name for tool in found]
    if len({*names}) < len(names):
        raise ConfigError(f"tools has two of one name, among {', '.join(names)}; rename one")
    return found


def _tool(given: Mapping[str, Any]) -> Tool:
    function = given.get("function") if isinstance(given, Mapping) and given.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise ConfigError(f"tools has {given!r}, which is no function; give {{'type': 'function', 'function': ...}}")
    name, description = function.get("name"), function.get("description") or ""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"tools names one {name!r}; give a name of at most 128 letters, digits, and any of _ . : / -")
    if not isinstance(description, str):
        raise ConfigError(f"tools describes {name!r} by {description!r}; give a text")
    parameters = function.get("parameters")
    schema = schema_of({"type": "object", "properties": {}} if parameters is None else parameters, f"tools {name!r}")
    return Tool(name, description, json.dumps(schema, ensure_ascii=False))


def calls_of(given: Sequence[Any]) -> tuple[ToolCall, ...]:
    """Read an assistant's calls: each {"function": {"name", "arguments"}}, arguments as JSON or a mapping, or nothing.

    Raises InputError for invalid calls.
    """
    found = []
    for call in given:
        function = call.get("function") if isinstance(call, Mapping) else None
        name, arguments = (function.get("name"), function.get("arguments")) if function else (None, None)
        try:
            if arguments is None or arguments == "":
                arguments = "{}"
            elif isinstance(arguments, Mapping):
                arguments = json.dumps(arguments, ensure_ascii=False)
            _DECODER.decode(arguments if isinstance(arguments, str) else "")
        except (ValueError, TypeError, RecursionError):  # TypeError: JSON has no such value
            name = None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(
                f"a message has the tool call {_shown(call)}; give {{'function': {{'name': ..., 'arguments': ...}}}}, "
                "with arguments as JSON"
            )
        found.append(ToolCall(name, str(arguments)))
    return tuple(found)


def _shown(call: Any) -> str:
    """Return a call as an error tells it."""
    try:
        return repr(call)
    except (ValueError, RecursionError):  # Python writes no integer of so many digits
        return "(too large to be told)"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Texts that a model writes around a call: before and after its JSON, and between two calls.

    before: "" = a reply that begins with a brace is a call, and there is only one
    """

    before: str = "<tool_call>\n"
    name_key: str = "name"
    arguments_key: str = "arguments"
    after: str = "\n</tool_call>"
    between: str = "\n"

    def written(self, calls: Sequence[ToolCall]) -> str:
        """Return calls as the model writes them."""
        return self.between.join(
            f"{self.before}{self._head(call.name)}{call.arguments}}}{self.after}" for call in calls
        )

    def grammar(self, use: ToolUse, schemas: Sequence[FittedSchema], reply: Mapping[str, Any] | None = None) -> Grammar:
        """Return the grammar of a reply that may call tools: a text, or calls, which may come after a text.

        schemas: the schema of the arguments of each tool that may be called
        reply: the JSON schema of a reply without calls; then no text comes before calls. None = it may be any text
        """
        bodies = [f"call_{i}" for i in range(len(use.callable))]
        rules = [
            f"{body}: {json.dumps(self._head(tool.name))} {_rule(it.schema)} {json.dumps('}' + self.after)}"
            for body, tool, it in zip(bodies, use.callable, schemas, strict=True)
        ]
        more = f" ({json.dumps(self.between + self.before)} call){{0,{use.most_calls - 1}}}"
        calls = "call" + (more if self.before and use.most_calls > 1 else "")
        if reply is not None and not use.must_call:
            start = [f"start: reply | {json.dumps(self.before)} {calls}", f"reply: %json {json.dumps(reply)}"]
        elif use.must_call:
            start = [f"start: {json.dumps(self.before) if self.before else ''} {calls}"]
        elif self.before:
            # lazy: a text ends at the first `before`, if there is one
            start = [f"start: TEXT | head {calls}", f"head[lazy]: TEXT {json.dumps(self.before)}", r"TEXT: /(.|\n)*/"]
        else:
            start = ["start: TEXT | call", r"TEXT: /([^{\s](.|\n)*)?/"]
        text = "\n".join(["%llguidance {}", *start, f"call: {' | '.join(bodies)}", *rules])
        found = [*(it.schema for it in schemas), *([] if reply is None else [reply])]
        before = self.before if reply is None else ""
        return Grammar(text, "tools", any(map(multiplies, found)), key_rule(found, before or None))

    def parsed(self, text: str) -> tuple[ToolCall, ...]:
        """Return the whole calls of a reply."""
        calls = []
        rest = text
        while len(rest) > (start := self.n_before_calls(rest)):
            rest = rest[start + len(self.before) :]
            call = self._first(rest)
            if call is None:
                break
            calls.append(call)
            rest = rest[len(self._head(call.name)) + len(call.arguments) :]
        return tuple(calls)

    def alike(self, text: str) -> str:
        """Return a reply with its calls in one form: clients may write arguments with other blanks or other order."""
        before, calls = text[: self.n_before_calls(text)], self.parsed(text)
        if text != before + self.written(calls):
            return text  # the text has no calls, or a call that was cut off
        plain = [ToolCall(it.name, json.dumps(_DECODER.decode(it.arguments), sort_keys=True)) for it in calls]
        return before + self.written(plain)

    def n_before_calls(self, text: str) -> int:
        """Return the number of characters before a text's first call; all of them if it has none."""
        found = text.find(self.before) if self.before else (0 if text.startswith("{") else -1)
        return len(text) if found < 0 else found

    def _head(self, name: str) -> str:
        return f'{{"{self.name_key}": "{name}", "{self.arguments_key}": '

    def _first(self, text: str) -> ToolCall | None:
        """Return the call at the beginning of a text."""
        name = re.match(re.escape(f'{{"{self.name_key}": "') + f"({_NAME.pattern})" + '"', text)
        if name is None or not text.startswith(head := self._head(name[1])):
            return None
        try:
            _, end = _DECODER.raw_decode(text, len(head))
        except (ValueError, RecursionError):
            return None
        return ToolCall(name[1], text[len(head) : end]) if text.startswith("}", end) else None


def _rule(schema: Mapping[str, Any]) -> str:
    """Return the rule for a tool's arguments in a grammar."""
    return "%json " + json.dumps({"x-guidance": TOOL_OPTIONS} | dict(schema))
