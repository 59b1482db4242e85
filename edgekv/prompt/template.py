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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.parser
from jinja2.ext import Extension

from edgekv.binding.model import Model
from edgekv.errors import ConfigError, InputError, UnsupportedModelError

from .template_sandbox import Sandbox

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
    compiled = _compile(template)
    compiled.environment.begin(messages, further)  # type: ignore[attr-defined]
    return compiled.render(messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos, **further)


@functools.lru_cache(maxsize=2)  # the model's template and the rehearsal's
def _compile(template: str) -> jinja2.Template:
    extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", _Generation]
    environment = Sandbox({"tojson": _as_json}, trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals |= {"raise_exception": _raise, "strftime_now": _today}
    environment.begin()  # constants are calculated here
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
