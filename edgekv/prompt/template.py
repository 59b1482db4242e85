"""The model's own chat template, cut into the texts before, between and after the contents of turns.

A session holds no transcript, because a transcript grows without end. It feeds each turn as it comes. So it needs the
text that the template puts around a turn, not a whole rendered conversation. It renders a short conversation whose
contents are marks, and cuts the result at the marks.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import jinja2.sandbox
from jinja2.ext import Extension
from jinja2.filters import FILTERS

from edgekv.binding.model import Model
from edgekv.errors import ConfigError, InputError, UnsupportedModelError

_MAX_NUMBER = 1 << 20  # the most repetitions or padding that a template may ask for
_WIDTH = re.compile(r"\d{7}")  # a width in a format that is, or may be, above _MAX_NUMBER
_WIDENING = ("batch", "center", "format", "indent")  # filters that repeat or pad as often as they are told
_LONGEST_DATE = 100  # characters of a date's format
_DATE = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*")  # no widths, which could be of gigabytes

_SYSTEM, _FIRST, _REPLY, _SECOND = (f"EDGEKV-MARK-{i}-" for i in range(4))


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Template text around contents; every piece may hold control tokens.

    before_system + SYSTEM + before_first + USER + after_user + REPLY + between + USER + after_user + ...
    Without a system message only `before_first` comes before the first user content.
    """

    before_system: str
    before_first: str
    after_user: str
    between: str
    holds_bos: bool


def chat_format(model: Model, *, with_system: bool) -> ChatFormat:
    """Cut a model's template up. Raises UnsupportedModelError if it has none, or one that cannot be cut."""
    template = model.header.chat_template
    if template is None:
        raise _no_template(model)
    system = [{"role": "system", "content": _SYSTEM}] if with_system else []
    opening = [*system, {"role": "user", "content": _FIRST}]
    turns = [*opening, {"role": "assistant", "content": _REPLY}, {"role": "user", "content": _SECOND}]
    try:
        bos, eos = (model.control_text(name) for name in ("bos", "eos"))
        one, two = (render(template, messages, bos, eos) for messages in (opening, turns))
        before_system, _, rest = one.partition(_SYSTEM) if with_system else ("", "", one)
        before_first, after_user = _cut(rest, _FIRST)
        between, _ = _cut(_cut(two, _REPLY)[1], _SECOND)
    except Exception as error:  # a template is a program, and may raise anything
        what = " with a system message" if with_system else ""
        raise UnsupportedModelError(f"the chat template of {model.path.name} cannot be used{what}: {error}") from error
    return ChatFormat(before_system, before_first, after_user, between, bool(bos) and one.startswith(bos))


def _cut(text: str, mark: str) -> tuple[str, str]:
    """Return what is before a mark, and after it."""
    if text.count(mark) != 1:
        raise jinja2.TemplateError("it leaves a message out, or tells it twice")
    before, _, after = text.partition(mark)
    return before, after


def check_template(model: Model, path: str | os.PathLike[str] | None) -> None:
    """Raise ConfigError if a model has its chat template from a file, and cannot use it. path: None = from no file"""
    if path is None:
        return
    try:
        chat_format(model, with_system=False)
    except UnsupportedModelError as error:
        raise ConfigError(
            f"chat_template={str(path)!r} cannot be used: {error.__cause__}; correct the template, or leave it out"
        ) from error


@dataclass(frozen=True, slots=True)
class Rendered:
    """Template text around the contents of whole messages; every piece may hold control tokens.

    before: text before each content, (n_messages,); after: text after the last content
    """

    before: tuple[str, ...]
    after: str
    holds_bos: bool


def rendered(model: Model, roles: Sequence[str], tools: Sequence[dict[str, Any]] = ()) -> Rendered:
    """Return the template text of a conversation whose messages have these roles, in any order that the template takes.

    tools: tools that the template describes; they must hold no names of control tokens

    Raises UnsupportedModelError if there is no template, InputError if it does not take such messages.
    """
    template = model.header.chat_template
    if template is None:
        raise _no_template(model)
    marks = [f"EDGEKV-MARK-{i}-" for i in range(len(roles))]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    bos, eos = (model.control_text(name) for name in ("bos", "eos"))
    try:
        whole = rest = render(template, messages, bos, eos, tools)
    except Exception as error:  # a template is a program, and may raise anything
        raise InputError(
            f"the chat template of {model.path.name} does not take messages of {', '.join(roles[:20])}: {error}"
        ) from error
    before = []
    for role, mark in zip(roles, marks, strict=True):
        text, found, rest = rest.partition(mark)
        if not found or mark in rest:
            raise InputError(
                f"the chat template of {model.path.name} leaves a message of {role!r} out, or moves it; leave it out, "
                "or give it another role"
            )
        before.append(text)
    return Rendered(tuple(before), rest, bool(bos) and whole.startswith(bos))


def _no_template(model: Model) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{model.path.name} has no chat template; give one (chat_template), continue a text with Session.generate or "
        "`edgekv complete`, or use an instruct model"
    )


def opens_with(template: str) -> str:
    """Return the text that a template puts between a user's turn and the reply; "" if it cannot be rendered."""
    with suppress(Exception):  # an error of the template is raised when a chat begins
        opening: str = render(template, [{"role": "user", "content": _FIRST}], "", "")
        return opening.partition(_FIRST)[2]
    return ""


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Sandbox that also refuses numbers that make one step take gigabytes. Loops of small steps are not bounded."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        times = [value for value in (left, right) if isinstance(value, int)]
        sizes = [len(value) for value in (left, right) if isinstance(value, Sequence)]
        is_large = any(n * size > _MAX_NUMBER for n in times for size in sizes)
        if operator == "**" or (operator == "%" and sizes) or is_large:
            raise jinja2.exceptions.SecurityError(f"it calculates {operator!r} of something large")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        if getattr(function, "__name__", "") in ("format", "format_map"):
            method = getattr(function, "__wrapped__", function)
            _check_widths((getattr(method, "__self__", ""), *args, *kwargs.values()))
        return super().call(context, function, *args, **kwargs)


def _check_numbers(values: Iterable[Any]) -> None:
    """Raise SecurityError for a number above _MAX_NUMBER."""
    if any(isinstance(value, int) and value > _MAX_NUMBER for value in values):
        raise jinja2.exceptions.SecurityError(f"it calls a function with a number beyond {_MAX_NUMBER}")


def _check_widths(values: Iterable[Any]) -> None:
    """Raise SecurityError for texts that may make a format wider than _MAX_NUMBER."""
    if any(_WIDTH.search(str(value)) for value in values):
        raise jinja2.exceptions.SecurityError(f"it formats with a number beyond {_MAX_NUMBER}")


def _bounded(name: str) -> Callable[..., Any]:
    """Return a filter of jinja that refuses what would take gigabytes."""
    plain = FILTERS[name]

    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "format":
            _check_widths((value,))
        if name != "format" or "*" in value:  # a star takes a width from the arguments
            _check_numbers((*args, *kwargs.values()))
        return plain(value, *args, **kwargs)

    return bounded


class _Generation(Extension):
    """The tags `generation` and `endgeneration`, by which training finds replies. All between them stays."""

    tags = {"generation"}  # noqa: RUF012 - as the class declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rehearse(template: str | None = None) -> None:
    """Compile a template, or render a small one, so that its memory is taken before a plan is made."""
    with suppress(Exception):  # an error of the template is raised when a chat begins
        if template is None:
            render("{% for m in messages %}{{ m['content'] | trim }}{% endfor %}", [{"content": "text"}], "", "")
        else:
            _compile(template)


def render(
    template: str, messages: list[dict[str, Any]], bos: str, eos: str, tools: Sequence[dict[str, Any]] = ()
) -> str:
    """Render messages and tools, up to the beginning of the reply. Raises anything."""
    further = {"tools": list(tools)} if tools else {}
    return _compile(template).render(
        messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos, **further
    )


@functools.lru_cache(maxsize=2)  # the model's template and the rehearsal's
def _compile(template: str) -> jinja2.Template:
    extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", _Generation]
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals |= {"raise_exception": _raise, "strftime_now": _today}
    environment.filters |= {"tojson": _as_json} | {name: _bounded(name) for name in _WIDENING}
    return environment.from_string(template)


def _as_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """Return JSON as models were trained on it: jinja's own is for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _today(form: str) -> str:
    if len(form) > _LONGEST_DATE or not _DATE.fullmatch(form):
        raise jinja2.exceptions.SecurityError(f"strftime_now of {form[:40]!r} is not possible")
    return datetime.now().strftime(form)


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)
